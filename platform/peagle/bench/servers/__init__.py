"""Servers over HTTP: running ones, and peagle beside vLLM's own."""
