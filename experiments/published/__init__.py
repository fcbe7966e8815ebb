"""Public sets with published tables: our heads and the default command on the same files."""
