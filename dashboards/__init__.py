"""Dashboards, recording rules and alerts as code; `make dashboards` writes what they generate."""
