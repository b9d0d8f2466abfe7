"""Decides when K changes: the tuner and its parts."""
