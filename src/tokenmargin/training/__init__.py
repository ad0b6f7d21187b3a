"""Train one-layer and two-layer attention with all its embeddings, on a CPU or a GPU. Needs torch."""
