"""Every method on one log, in equal time: which one, for this data."""
