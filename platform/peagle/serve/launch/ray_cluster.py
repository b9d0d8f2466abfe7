"""The Ray cluster under `peagle serve`: started here or joined, and what Serve says about the application."""

import json
import math
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.api.loopback import ONE_MACHINE, YES
from peagle.config import ACCELERATOR_TYPES, Deployment
from peagle.errors import ConfigError, StartupError
from peagle.host.terminal import LOG_BYTES_MAX
from peagle.import_paths import EDGE_MIDDLEWARES

APP_NAME = "peagle"
OBJECT_STORE_BYTES = 128 << 20

# Read by Ray and vLLM as they are imported; what the operator has set stays.
ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # One file takes every process's log: whole, and without colours.
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    # Idle workers that Ray would start at once; replicas have an environment of their own and cannot use them.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray lowers its workers' priority by 15 steps, which on a busy machine starves the engine itself.
    "RAY_worker_niceness": "0",
    # Serve's own proxy answers in OpenAI's form, too.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": EDGE_MIDDLEWARES,
    # A busy machine takes longer than the 5 s that Serve gives its proxy to answer; after three it is started anew.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    # Interval of the controller's loop, and of copying counters that are exported every 10 s. At their defaults, 0.1 s,
    # the two use a tenth of a core of an idle platform.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    # Of each log of Ray's own and of its workers, two parts are kept; its workers' would grow without bound.
    "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES_MAX),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    # A first start that fails is told at once; a replica that has run is restarted for ever all the same.
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",
}

# How requests pass through processes and between them. All of a cluster have to agree: one that is joined has its own.
TRANSPORT: Mapping[str, str] = {
    # On one event loop, not by way of two threads with loops of their own.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # By gRPC, not as tasks of Ray's with an object for each piece of an answer.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    # Bodies and answers are bounded at the edge; 4 MiB, the default, is less than a body may have.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    # Else gRPC would send them to a proxy that is meant for downloads.
    "grpc_proxy": "",
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far the application is. `replicas` counts running and wanted replicas of all models."""

    is_running: bool
    problem: str | None
    replicas: tuple[int, int]


def prepare_environment(*, joins: bool = False) -> None:
    """Set what is not set; `joins` where the cluster runs already, and decides for itself how requests pass."""
    for name, value in (ENVIRONMENT if joins else {**ENVIRONMENT, **TRANSPORT}).items():
        os.environ.setdefault(name, value)


def keep_private(folder: Path) -> None:
    """Have the cluster that is started next be used by this user on this machine alone: Ray runs any code it is sent.

    Its ports listen on loopback, and whoever connects to one has to know a token, which lies in `folder`. Where the
    operator has set either, it stays.

    Args:
        folder: That no other user may enter.
    """
    os.environ.setdefault(ONE_MACHINE, YES)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if os.environ["RAY_AUTH_MODE"].lower() == "token" and not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(
        os.environ
    ):
        # Ray itself would write one into the user's home, for others to read.
        token = folder / "ray_token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


def logical_cpus(deployments: Sequence[Deployment], ingresses: int = 1) -> int:
    """CPUs to tell Ray: enough to place every replica and ingress process, whatever the machine has.

    They only place processes; cores are shared out by `peagle.host.cores`.
    """
    replicas = sum(deployment.replicas.max for deployment in deployments)
    needed = sum(deployment.replicas.max * deployment.resources.cpus for deployment in deployments)
    return max(os.cpu_count() or 1, math.ceil(needed) + max(replicas, ingresses) + 1)


def connect(deployments: Sequence[Deployment], address: str | None, ingresses: int = 1) -> None:
    """Start a cluster that ends with this process, or join that at `address`. Raises StartupError where it cannot."""
    import ray

    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=logical_cpus(deployments, ingresses),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=True,
            )
        else:
            ray.init(address=address, log_to_driver=True)
    except Exception as error:  # Ray raises plain exceptions here, and none that the operator could not mend
        where = f"no Ray cluster answers at {address}" if address else "Ray did not start"
        fix = (
            "Check the address; for a cluster with token authentication set RAY_AUTH_MODE=token"
            if address
            else "The log says more"
        )
        raise StartupError(f"{where} ({first_line(str(error))})", f"{fix}.") from None


def resources() -> Mapping[str, float]:
    """What the cluster has, by Ray's names."""
    import ray

    found: Mapping[str, float] = ray.cluster_resources()
    return found


def check_accelerators(deployments: Sequence[Deployment], resources: Mapping[str, float]) -> None:
    """The kinds of GPU that are asked for are among a cluster's `resources`, as Ray tells them.

    Raises ConfigError where one is not, so that its replicas would wait for it for ever.
    """
    prefix = "accelerator_type:"
    present = sorted(name.removeprefix(prefix) for name in resources if name.startswith(prefix))
    for deployment in deployments:
        wanted = deployment.resources.accelerator_type
        # By the name under which Ray's LLM library looks for it.
        if wanted is not None and {"A10": "A10G"}.get(wanted, wanted) not in present:
            named = [each for each in present if each in ACCELERATOR_TYPES]
            problem = f"this machine has {' and '.join(present) or 'no GPU that Ray knows by name'}"
            fix = f"Write {' or '.join(named)}, or leave it out." if named else "Leave it out."
            raise ConfigError(f"{deployment.name}: resources.accelerator_type", wanted, problem, fix)


def write_agents(path: Path) -> None:
    """Write where Ray's agents export vLLM's series and Ray's own, for Prometheus' file discovery."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["MetricsExportPort"]]
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]
    path.write_text(json.dumps([{"targets": targets}]), encoding="utf-8")


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def deploy(app: Any, host: str, port: int, *, joined: bool, deployed: threading.Event) -> None:
    """Hand the application to Serve; return before it runs.

    From the moment on in which Serve may have it, `deployed` is set: `leave` then takes it away.

    Raises:
        StartupError: Serve's proxy does not start, or the cluster that was `joined` serves an application of that name,
            which this one would replace.
    """
    from ray import serve
    from ray.serve.api import RunTarget, run_many

    quiet = {"enable_access_log": False}
    try:
        serve.start(http_options={"host": host, "port": port}, logging_config=quiet)
    except Exception as error:  # Ray raises errors of many kinds here, and none that says more than its log
        raise StartupError(f"Ray Serve's proxy did not start ({first_line(str(error))})", "The log says more") from None
    if joined and APP_NAME in serve.status().applications:
        raise StartupError(
            f"the cluster serves an application named {APP_NAME} already",
            f"Stop what serves it, or delete it there (ray.serve.delete({APP_NAME!r})), or leave --address out",
        )
    deployed.set()
    run_many([RunTarget(target=app, name=APP_NAME, logging_config=quiet)], wait_for_applications_running=False)


def rollout() -> Rollout:
    """Ask Serve how far the application is."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    app = serve.status().applications.get(APP_NAME)
    if app is None:
        return Rollout(False, None, (0, 0))
    failed = app.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
    messages = [app.message, *(part.message for part in app.deployments.values())]
    problem = next((text for text in messages if "failed to start" in text), app.message if failed else None)
    states = [part.replica_states for name, part in app.deployments.items() if name not in ("Ingress", "Router")]
    running = sum(count for part in states for state, count in part.items() if state == "RUNNING")
    wanted = sum(count for part in states for count in part.values())
    return Rollout(app.status == ApplicationStatus.RUNNING, problem, (running, wanted))


def leave(
    address: str | None, attempt: Callable[[Callable[[], None]], None], deployed: threading.Event | None = None
) -> None:
    """Drain and stop Serve, then Ray; on a cluster that is not ours only our application goes."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    from ray import serve

    if address is None:
        attempt(serve.shutdown)
    elif deployed is not None and deployed.is_set():  # else one of that name is somebody else's
        attempt(lambda: serve.delete(APP_NAME))
    attempt(ray.shutdown)
