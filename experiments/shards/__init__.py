"""The cost of selecting the best n/m on every shard instead of the best n of all."""
