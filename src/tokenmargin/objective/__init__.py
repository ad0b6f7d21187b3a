"""What is minimised: losses, and the objectives they give for prompts, heads and embeddings, with stable directions."""
