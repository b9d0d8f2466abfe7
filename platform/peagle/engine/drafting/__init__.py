"""How drafts and seeded tokens are chosen: maths, without vLLM."""
