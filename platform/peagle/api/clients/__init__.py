"""Whose requests they are, and what each may ask."""
