"""Versions: commits, and what they are made of."""
