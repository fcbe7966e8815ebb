"""Checkpoints: atomic, checksummed, and loadable by any number of processes."""
