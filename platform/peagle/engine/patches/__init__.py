"""Replacements in vLLM: one module for each group of symbols."""
