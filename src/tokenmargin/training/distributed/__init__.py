"""Several processes that train one model: how they meet, and what each of them does."""
