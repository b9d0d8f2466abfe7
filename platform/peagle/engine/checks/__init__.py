"""Checks that need no vLLM: deployment files, engine arguments, and whether a drafter matches its target."""
