"""Training with workers and parameter servers, in processes that Ray runs."""
