"""Regularisation paths: minimisers on spheres, in cones and jointly with the head, followed by Newton's method."""
