"""Evaluation of ranked lists: metrics with confidence intervals, and counting baselines."""
