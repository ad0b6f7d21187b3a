"""Drawings and pages of results; the only room that uses matplotlib."""
