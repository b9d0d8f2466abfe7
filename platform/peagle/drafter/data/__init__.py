"""What a head learns from: corpora, prompts, and what the target wrote."""
