"""Network access to `peagle serve`: clients reach only its port, and nothing else is reachable."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

JOIN = "import ray; ray.init(address='auto', log_to_driver=False); print('joined')"


def listening(served: Served) -> dict[int, str]:
    """Return the listening addresses of a platform's processes, by port."""
    processes = [psutil.Process(served.pid), *psutil.Process(served.pid).children(recursive=True)]
    found = {}
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found.update({each.laddr.port: each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN})
    return found


def test_every_port_listens_on_loopback(served: Served) -> None:
    ports = listening(served)
    assert served.port in ports
    assert len(ports) > 5
    assert {ip for ip in ports.values() if ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")} == set()


def gcs(served: Served) -> psutil.Process:
    (found,) = [each for each in psutil.Process(served.pid).children(recursive=True) if each.name() == "gcs_server"]
    return found


def test_ray_runs_nobodys_code_without_the_token_which_only_this_user_reads(served: Served) -> None:
    environment = gcs(served).environ()
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert token.stat().st_mode & 0o077 == 0
    assert token.parent.stat().st_mode & 0o077 == 0
    (port,) = {each.laddr.port for each in gcs(served).net_connections("inet") if each.status == psutil.CONN_LISTEN}
    for known, status in ((token.read_text(encoding="ascii"), 0), ("0" * 64, 1)):
        theirs = {**environment, "RAY_AUTH_TOKEN": known, "RAY_ADDRESS": f"127.0.0.1:{port}"}
        joined = subprocess.run(
            [sys.executable, "-c", JOIN], env=theirs, capture_output=True, text=True, timeout=300, check=False
        )
        assert joined.returncode == status, joined.stderr
