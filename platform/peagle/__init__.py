"""Serves large language models with vLLM and P-EAGLE on Ray Serve."""

__version__ = "0.2.0"
