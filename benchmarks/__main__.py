"""The comparisons that need no data, one after the other: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib.util
import runpy
import sys

# Those that read a dataset (text, classifier) or results of a GPU (embedding_figures, vision_figures), and those
# that take an hour (margin_exact, margin_oracle, margin_growth), are run by name.
ROUTINE = ("margin_speed", "margin_atlas", "flow", "figure9", "training", "sweep_overhead", "explore_frames")


def main() -> None:
    for name in sys.argv[1:] or ROUTINE:
        module = importlib.util.find_spec(f"benchmarks.{name}")
        if module is None:
            sys.exit(f"no benchmark {name!r}; they are the modules of this folder")
        print(f"\n=== {name}\n", flush=True)
        sys.argv = [name]
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        except SystemExit as ended:  # with the exit code of that one alone
            print(f"{name} ended with {ended.code}" if ended.code else "", end="")


if __name__ == "__main__":
    main()
