"""Checks that need no vLLM: deployment files, engine arguments, and a drafter beside its target."""
