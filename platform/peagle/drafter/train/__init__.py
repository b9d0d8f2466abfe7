"""Training of heads and of the embedded target."""
