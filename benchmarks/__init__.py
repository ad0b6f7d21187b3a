"""The comparisons that the documentation quotes, one command each: `python -m benchmarks.<name>`."""
