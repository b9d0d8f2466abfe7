"""CUDA graphs of one engine: what its deployment asks for, what is captured, and what its steps ran as."""
