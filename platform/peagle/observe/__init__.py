"""Looking at a running server: traffic to look at, Prometheus and Grafana beside it, dashboards as pictures."""
