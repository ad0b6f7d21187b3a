"""Vision transformers: the model, its training, and measures of any model's attention."""
