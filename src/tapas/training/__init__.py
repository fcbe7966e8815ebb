"""Training: from an event log to a model in a run folder."""
