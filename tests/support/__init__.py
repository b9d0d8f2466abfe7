"""What several test files share: helpers that start, render or stand in for the real thing."""
