"""Helpers shared by several test files, which start, render or replace real components."""
