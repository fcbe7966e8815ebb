"""What it costs that every shard keeps its own best n/m."""
