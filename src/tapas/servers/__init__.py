"""Rows and encoders in processes of their own, on Ray: workers and servers."""
