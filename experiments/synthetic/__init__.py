"""The paper's synthetic experiments: figures 1 and 2, pool size, temperature."""
