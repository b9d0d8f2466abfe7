"""Dispatch policies over a fleet of timed replicas on real Ray Serve."""
