"""Training and corpora beyond one machine: `python -m benchmarks.cluster [exchange growth corpus memory]`.

- exchange: two and four ranks against one, and against torch's DistributedDataParallel, in the same run: what a rank
  hands to the network (counted at the collectives, and by the kernel's loopback counter), time, and the difference.
- growth: time, bytes and memory of a step against vocabulary, dimension and ranks, with fitted slopes, beside the cost
  model calibrated on this machine; then the cost model at a billion texts and a vocabulary of a million.
- corpus: preparing in slices against texts, vocabulary and workers, with fitted slopes.
- memory: preparing and training under a memory limit smaller than the corpus.
"""

from __future__ import annotations

import argparse

from benchmarks import cluster_corpus, cluster_memory, cluster_training

PARTS = {
    "exchange": cluster_training.exchange,
    "growth": cluster_training.growth,
    "corpus": cluster_corpus.growth,
    "memory": cluster_memory.under_a_limit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    for part in parser.parse_args().parts or PARTS:
        print(f"\n== {part}\n", flush=True)
        PARTS[part]()


if __name__ == "__main__":
    main()
