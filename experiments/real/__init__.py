"""The paper's experiment on real data: figures 3 and 4, table 1 in one process, sweeps."""
