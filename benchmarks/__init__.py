"""The comparisons that the documentation quotes, one command each: `python -m benchmarks.<name>`.

Everything runs with one BLAS thread unless the environment says otherwise: on small matrices more threads stall.
"""

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
