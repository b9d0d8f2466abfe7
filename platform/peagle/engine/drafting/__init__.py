"""Maths for choosing drafts and seeded tokens, without vLLM."""
