"""Draining of nodes without losing a request."""
