"""Checkpoints: saved whole or not at all, for any number of processes."""
