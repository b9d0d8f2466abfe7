"""Measurements of real engines and servers, with compared variants interleaved."""
