"""How good lists are: metrics with intervals, beside counting baselines."""
