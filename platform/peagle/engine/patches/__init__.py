"""What is replaced in vLLM: one module for each group of symbols."""
