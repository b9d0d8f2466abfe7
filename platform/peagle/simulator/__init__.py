"""Replicas whose acceptance and step times are known: the functions of router/ run around them, unchanged."""
