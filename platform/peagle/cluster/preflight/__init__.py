"""Whether a Kubernetes cluster has what a release needs."""
