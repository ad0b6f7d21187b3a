"""Corpora larger than memory: cut into slices, counted and numbered by workers, kept as shards."""
