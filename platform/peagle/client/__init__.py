"""A running server, as commands reach it: its address, key and models."""
