"""`peagle serve`: starts Ray, deploys, waits until every replica answers, and stops everything at the end."""

import json
import logging
import os
import shlex
import shutil
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from rich.markup import escape

from peagle import tracing
from peagle.api.api_settings import ApiSettings, read_settings
from peagle.api.clients.keys import check_keys
from peagle.client.running_server import API_KEY
from peagle.config import Deployment
from peagle.engine.start_causes import Cause, find_cause_in
from peagle.errors import ConfigError, StartupError
from peagle.host import processes
from peagle.host.addresses import is_loopback
from peagle.host.supervisor import supervise
from peagle.host.terminal import Terminal, agents_path, log_path
from peagle.serve import haproxy
from peagle.serve.launch import ray_cluster
from peagle.serve.launch.cluster_watch import watch_ray
from peagle.serve.launch.machine_checks import check_machine
from peagle.serve.launch.serving_arguments import read_deployments
from peagle.serve.warm_progress import warming_in

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
POLL_S = 0.5
# Time for remaining processes to end by themselves, and again after a stop signal.
PATIENCE_S = 10.0
EXIT_LOST = 1
EXAMPLE_PROMPT = "def read_lines(path):"


class Interrupted(BaseException):
    """The operator requested a stop. Not an `Exception`, so that no library handles it."""


class StopSignals:
    """Handles Ctrl-C and SIGTERM: the first interrupts the main thread, a later one ends everything at once."""

    def __init__(self, force: Callable[[], None]) -> None:
        self._force = force
        self._stopping = False

    def install(self) -> None:
        """Install both handlers; called again after Ray, which installs its own."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def begin_stop(self) -> None:
        """From now on, a signal forces the end."""
        self._stopping = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            self._force()
        self._stopping = True
        raise Interrupted


def run(
    paths: Sequence[Path | str],
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    api: ApiSettings | Mapping[str, Any] | None = None,
    address: str | None = None,
    traces: tuple[str, float] | None = None,
) -> int:
    """Serve deployment files until Ctrl-C or SIGTERM.

    Args:
        paths: One deployment file per model.
        host: Address to listen on.
        port: Port to listen on.
        api: HTTP settings, or their fields.
        address: A running Ray cluster to deploy to; None starts a cluster here, which ends with this call.
        traces: Collector of spans, and share of requests to trace; see `peagle.tracing.environment`.

    Returns:
        The process's exit status: 0 after a requested stop.

    Raises:
        ConfigError: A file, a setting or a checkpoint is invalid.
        StartupError: This machine cannot run it now; the message names the cause and the log.
    """
    supervise("the server")
    deployments = read_deployments([str(path) for path in paths])
    settings = read_settings(api)
    spans = trace_environment(traces, address)
    if address is None:
        if settings.keys_file is not None:
            check_keys(Path(settings.keys_file))
        check_machine(deployments, host, port)
    ray_cluster.prepare_environment(joins=address is not None)
    os.environ.update(spans)
    processes.adopt_orphans()
    signals, deployed = StopSignals(force=_end_now), threading.Event()
    with Terminal(log_path(port)) as terminal:
        folder = None
        if address is None:
            folder = Path(tempfile.mkdtemp(prefix="peagle-", dir="/tmp"))  # private to this user
            ray_cluster.keep_private(folder)
            put_haproxy_in_front(host, folder)
        signals.install()
        try:
            terminal.say(f"Logs of Ray and vLLM: {terminal.log}")
            _start(deployments, settings, (host, port, address), terminal, signals, deployed)
            announce(deployments, settings, base_url(host, port, address), terminal)
            threading.Event().wait()
        except (Interrupted, SystemExit):
            terminal.say("Stopping. Press Ctrl-C again to stop at once.")
        finally:
            signals.begin_stop()
            with terminal.stage("Stop"):
                ray_cluster.leave(address, _attempt, deployed)
                processes.end_descendants(PATIENCE_S)
                agents_path(port).unlink(missing_ok=True)
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
    return 0


def put_haproxy_in_front(host: str, folder: Path) -> bool:
    """Make the next started cluster listen on `host` with HAProxy, whose files are in `folder`.

    Returns False if Serve's own proxy is used: HAProxy is not installed, or the operator has disabled it.
    """
    if os.environ.get(haproxy.SWITCH_KEY) == "0" or not haproxy.is_installed():
        return False
    given = haproxy.environment(folder, host)
    for name, value in given.items():
        os.environ.setdefault(name, value)
    # Without these, clients would look like callers on this machine.
    os.environ.update({name: given[name] for name in (haproxy.PROGRAM_KEY, haproxy.LISTEN_KEY, haproxy.TRUSTED_KEY)})
    return True


def trace_environment(traces: tuple[str, float] | None, address: str | None) -> dict[str, str]:
    """Return the tracing variables for the cluster's processes; empty without `traces`.

    Raises ConfigError if the collector's address is invalid, or the cluster is already running.
    """
    if traces is None:
        return {}
    url, ratio = traces
    found = tracing.environment(url, ratio, os.environ)
    if address is not None:
        told = " ".join(f"{name}={value}" for name, value in found.items())
        problem = f"the cluster at {address} already has its own environment"
        raise ConfigError("--traces-to", url, problem, f"Start its nodes with {told}, and omit the option.")
    return found


def _start(
    deployments: Sequence[Deployment],
    settings: ApiSettings,
    where: tuple[str, int, str | None],
    terminal: Terminal,
    signals: StopSignals,
    deployed: threading.Event,
) -> None:
    host, port, address = where
    try:
        with terminal.stage("Start Ray" if address is None else f"Join Ray at {address}"):
            _connect(deployments, address, settings.ingresses)
            if address is None:
                watch_ray(lambda what: _end_without(what, signals, terminal))
                # A joined cluster may add such nodes on demand.
                ray_cluster.check_accelerators(deployments, ray_cluster.resources())
            signals.install()
            # Imported here: Ray's LLM library takes seconds, during which the terminal should show progress.
            from peagle.serve.app import compose

            listening = haproxy.BEHIND_HOST if haproxy.is_in_front() else host
            app = compose(deployments, settings)
            ray_cluster.deploy(app, listening, port, joined=address is not None, deployed=deployed)
            ray_cluster.write_agents(agents_path(port))
        with terminal.stage("Load " + ", ".join(deployment.name for deployment in deployments)) as stage:
            while not (state := ray_cluster.rollout()).is_running:
                if state.problem:
                    cause = find_cause_in(terminal.log) or Cause(ray_cluster.first_line(state.problem))
                    raise StartupError(cause.problem, f"{cause.fix} Log" if cause.fix else "See the log")
                warming = warming_in(terminal.log)
                stage.detail(
                    f"{state.replicas[0]} of {state.replicas[1]} replicas ready"
                    + (f", warming up: {warming}" if warming else "")
                )
                time.sleep(POLL_S)
            ready = ray_cluster.rollout().replicas[0]
            stage.detail(f"{ready} replica{'s' * (ready != 1)} ready")
        if (url := base_url(host, port, address)) is not None:
            with terminal.stage("Ask every replica"):
                wait_until_all_answer(url, deployments)
    except StartupError as error:
        raise StartupError(error.problem, f"{error.fix.rstrip('.')}: {terminal.log}") from None


def _connect(deployments: Sequence[Deployment], address: str | None, ingresses: int) -> None:
    try:
        ray_cluster.connect(deployments, address, ingresses)
    except StartupError:
        if address is not None:
            raise
        # Ray gives its own processes half a minute, which may be too short with a cold disk and a busy machine.
        processes.end_descendants(patience_s=0)
        ray_cluster.connect(deployments, address, ingresses)


def base_url(host: str, port: int, address: str | None = None) -> str | None:
    """Return the URL for a client on this machine of a server that listens on `host` in the Ray cluster at `address`.

    None if the nodes listen only on their own loopback, and this machine is not one of them.
    """
    # Ray's other addresses can be joined only from the cluster's own machines.
    head = (urlsplit(address or "").hostname or "") if (address or "").startswith("ray://") else "localhost"
    is_here = head == "localhost" or is_loopback(head)
    if host in ("0.0.0.0", "::"):
        host = head if not is_here else "127.0.0.1" if host == "0.0.0.0" else "::1"
    elif not is_here and (host == "localhost" or is_loopback(host)):
        return None
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def wait_until_all_answer(
    url: str,
    deployments: Sequence[Deployment],
    timeout_s: float = 60.0,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Poll /health until each model has at least its minimum number of healthy replicas."""
    wanted = {deployment.name: deployment.replicas.min for deployment in deployments}
    deadline_s = now_s() + timeout_s
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not through the environment's proxies
    while True:
        answered: dict[str, int] = {}
        try:
            with direct.open(f"{url}/health", timeout=timeout_s) as answer:
                answered = json.load(answer)["replicas"]
        except (urllib.error.URLError, OSError, ValueError) as error:
            logger.info("%s/health: %s", url, error)
        if all(answered.get(name, 0) >= count for name, count in wanted.items()):
            return
        if now_s() > deadline_s:
            raise StartupError(
                f"{url}/health reports {answered} instead of {wanted} after {timeout_s:.0f} s", "See the log"
            )
        sleep(POLL_S)


def announce(deployments: Sequence[Deployment], settings: ApiSettings, url: str | None, terminal: Terminal) -> None:
    """Print that the server is ready, its URL, a command to try it, and the address of its console."""
    if url is None:
        terminal.say(
            "Ready, for callers on the cluster's own machines; --host 0.0.0.0 accepts others. Ctrl-C stops it."
        )
        return
    body = {"model": deployments[0].name, "prompt": EXAMPLE_PROMPT, "max_tokens": 64, "temperature": 0}
    terminal.console.print(f"\n[bold green]Ready[/bold green] at [bold]{escape(url)}[/bold]. Try it:\n")
    key = f'-H "Authorization: Bearer ${API_KEY}" ' if settings.keys_file else ""
    json_type = "-H 'Content-Type: application/json'"
    terminal.say(f"curl {url}/v1/completions {key}{json_type} -d {shlex.quote(json.dumps(body))}\n")
    terminal.say(f"Console: {url}/")
    terminal.say("Ctrl-C stops it.")


def _attempt(step: Callable[[], None]) -> None:
    """Run one step of the stop; a failed step must not prevent the next one."""
    try:
        step()
    except Exception:
        logger.exception("A step of the stop failed")


def _end_without(what: str, signals: StopSignals, terminal: Terminal) -> None:
    """End everything because `what` was lost, unless a stop was already requested."""
    if signals.stopping:
        return
    signals.begin_stop()
    terminal.say(f"{what} has ended, and nothing can be served without it. Stopped. Log: {terminal.log}")
    _end_now(EXIT_LOST)


def _end_now(status: int = 128 + signal.SIGINT) -> None:
    processes.send(processes.descendants(), signal.SIGKILL)
    os._exit(status)
