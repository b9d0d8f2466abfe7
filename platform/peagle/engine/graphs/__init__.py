"""CUDA graphs of one engine: its deployment's settings, the captured graphs, and the graph of each step."""
