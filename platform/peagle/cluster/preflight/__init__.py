"""Checks whether a Kubernetes cluster meets a release's requirements."""
