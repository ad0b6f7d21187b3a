"""Stacks of small max-margin problems solved by compiled code."""
