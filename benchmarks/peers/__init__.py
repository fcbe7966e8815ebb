"""Contenders of bench_peers.py: the softmax heads that people use today, and ours."""
