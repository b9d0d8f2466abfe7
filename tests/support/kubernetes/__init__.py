"""Kubernetes: the rendered chart, releases on a real cluster, and an API server over HTTP."""
