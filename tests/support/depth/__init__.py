"""Scenarios, step times and reports for tests of the depth rule and of dispatch."""
