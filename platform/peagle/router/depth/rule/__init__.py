"""When K changes: the tuner and what it is made of."""
