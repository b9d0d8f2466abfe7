"""What operators read: metrics, Prometheus queries, traces."""
