"""From a log to a trained model, in a folder that holds all of it."""
