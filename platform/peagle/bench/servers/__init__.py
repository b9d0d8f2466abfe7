"""Servers over HTTP: running servers, and peagle compared with vLLM's own."""
