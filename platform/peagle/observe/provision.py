"""Configuration of Prometheus and Grafana with rules, data source and dashboards."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from peagle.host.terminal import agents_path

# Longer than a scrape waits for a replica (api.probe_timeout_s), because Prometheus gives up after this time.
SCRAPE_S = 10
UID = "prometheus"


def prometheus_config(url: str, rules: list[Path]) -> dict[str, Any]:
    """Return Prometheus' configuration for the server at `url`, Ray's agents behind it, and the rule files `rules`."""
    server = urlsplit(url)
    port = server.port or {"https": 443}.get(server.scheme, 80)
    host = f"[{server.hostname}]" if ":" in (server.hostname or "") else server.hostname
    path = f"{server.path.rstrip('/')}/metrics"
    target = {"scheme": server.scheme, "metrics_path": path, "static_configs": [{"targets": [f"{host}:{port}"]}]}
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {"job_name": "peagle", **target},
            {"job_name": "ray", "file_sd_configs": [{"files": [str(agents_path(port))], "refresh_interval": "10s"}]},
        ],
    }


def write_prometheus(folder: Path, url: str, rules: list[Path]) -> Path:
    """Write Prometheus' configuration into `folder`; return its path."""
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(prometheus_config(url, rules), sort_keys=False), encoding="utf-8")
    return path


def write_grafana(folder: Path, prometheus: str, dashboards: Path) -> dict[str, str]:
    """Write Grafana's data source and dashboards into `folder`; return the environment for its start."""
    source = {"name": "Prometheus", "type": "prometheus", "uid": UID, "url": prometheus, "isDefault": True}
    options = {"path": str(dashboards.resolve())}
    files = {
        "datasources": {"apiVersion": 1, "datasources": [{**source, "access": "proxy"}]},
        "dashboards": {"apiVersion": 1, "providers": [{"name": "peagle", "type": "file", "options": options}]},
    }
    for kind, content in files.items():
        path = folder / "provisioning" / kind / "peagle.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        # JSON is valid YAML.
        path.write_text(json.dumps(content), encoding="utf-8")
    return {
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_PATHS_DATA": str(folder / "grafana"),
        "GF_PATHS_LOGS": str(folder / "grafana"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
