"""The stated results of both papers, as claims that can be run."""
