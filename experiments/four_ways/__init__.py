"""One encoder trained four ways over 100,000 classes: the figure of the README."""
