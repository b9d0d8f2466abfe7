"""Dispatch in Ray Serve's terms: the request router and the Router deployment."""
