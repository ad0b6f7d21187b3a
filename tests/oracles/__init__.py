"""Independent witnesses shared by tests and benchmarks: exact arithmetic, other solvers, and problems to ask them."""
