"""The softmax heads that people use today, and ours, each as one contender of bench_peers.py."""
