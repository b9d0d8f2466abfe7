"""Observing a running server: test load, Prometheus and Grafana, dashboards as pictures."""
