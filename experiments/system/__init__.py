"""The paper's table 1 with workers and servers."""
