"""Nodes that leave without losing a request."""
