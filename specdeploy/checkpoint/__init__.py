"""Checkpoints: what is in them, and whether two of them belong together."""
