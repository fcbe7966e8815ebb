"""What needs no log of a user: bias of estimators, and step times over the number of classes."""
