"""What all figures of the library share."""
