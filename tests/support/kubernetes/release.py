"""A release of the chart on the Kubernetes that KUBECONFIG names, through `helm` and `kubectl`, as users have it.

Environment:
    KUBECONFIG              the cluster
    PEAGLE_TEST_IMAGE       the image on its nodes; by default peagle:0.2.0-cpu
    PEAGLE_TEST_VALUES      Helm values that this cluster needs, such as those of an older operator
    PEAGLE_TEST_REDIS_IMAGE  an image with redis-server on its nodes; without one the tests that need it are skipped
    PEAGLE_TEST_NAMESPACE   where a release `peagle` of the default values serves already, to be used and left there
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.paths import REPOSITORY

Json = dict[str, Any]

IMAGE = os.environ.get("PEAGLE_TEST_IMAGE", "peagle:0.2.0-cpu")
OWN_VALUES = os.environ.get("PEAGLE_TEST_VALUES")
CHART = REPOSITORY / "helm" / "peagle"
LOAD = Path(__file__).parent / "service_load.py"
READY_TIMEOUT_S = 600.0
CLIENTS = 4


def run(*command: str, check: bool = True, given: str | None = None, timeout_s: float = 600.0) -> str:
    """Run a command and return its output; a failure includes the output."""
    ended = subprocess.run(command, capture_output=True, text=True, input=given, timeout=timeout_s, check=False)
    if check and ended.returncode:
        raise AssertionError(f"{' '.join(command)}: {ended.stderr or ended.stdout}")
    return ended.stdout if not ended.returncode else ended.stderr


def until(holds: Callable[[], bool], what: str, within_s: float, every_s: float = 1.0) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - began_s


def prepared_chart(folder: Path) -> Path:
    """The chart after `helm dependency update`; with an empty operator if its chart was not fetched."""
    chart = folder / "peagle"
    shutil.copytree(CHART, chart)
    if not list(chart.glob("charts/*.tgz")):
        stand_in = folder / "kuberay-operator"
        stand_in.mkdir()
        (stand_in / "Chart.yaml").write_text("apiVersion: v2\nname: kuberay-operator\nversion: 1.7.0\n")
        (chart / "charts").mkdir()
        with tarfile.open(chart / "charts" / "kuberay-operator-1.7.0.tgz", "w:gz") as packed:
            packed.add(stand_in, "kuberay-operator")
    return chart


@dataclass
class Load:
    """Results of clients of the Service: complete answers, and failures with time and reason."""

    answered: int = 0
    lost: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0

    @property
    def unanswered(self) -> list[str]:
        """Return requests that were neither answered nor refused within the platform's longest wait."""
        return [line for line in self.lost if "TimeoutError" in line]


@dataclass(frozen=True)
class Release:
    """One release, in its own namespace."""

    chart: Path
    name: str
    namespace: str

    def helm(self, *arguments: str, check: bool = True) -> str:
        return run("helm", *arguments, "--namespace", self.namespace, check=check)

    def apply(self, verb: str, *arguments: str, check: bool = True) -> str:
        """`helm install` or `helm upgrade`, with this cluster's image and values."""
        repository, _, tag = IMAGE.rpartition(":")
        image = ["--set", f"image.repository={repository}", "--set", f"image.tag={tag}"]
        # By default, 10 minutes for the last streams, which are short here.
        short = ["--set", "ray.clusterDeletionDelaySeconds=60"]
        own = ["--values", OWN_VALUES] if OWN_VALUES else []
        return self.helm(verb, self.name, str(self.chart), *image, *short, *own, *arguments, check=check)

    def kubectl(self, *arguments: str, check: bool = True, given: str | None = None) -> str:
        return run("kubectl", "--namespace", self.namespace, *arguments, check=check, given=given)

    def objects(self, kind: str, selector: str = "") -> list[Json]:
        chosen = ["--selector", selector] if selector else []
        items: list[Json] = json.loads(self.kubectl("get", kind, *chosen, "--output", "json"))["items"]
        return items

    def workers(self) -> dict[str, str]:
        """Nodes of the worker pods that are not ending, by pod."""
        pods = self.objects("pods", "ray.io/node-type=worker")
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def is_running(self) -> bool:
        services = self.objects("rayservices")
        return bool(services) and all(each.get("status", {}).get("serviceStatus") == "Running" for each in services)

    def pods(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.objects("pods", "ray.io/node-type")}

    def ready(self, kind: str) -> set[str]:
        """The pods of a kind, `head` or `worker`, that are ready."""
        return {
            pod["metadata"]["name"]
            for pod in self.objects("pods", f"ray.io/node-type={kind}")
            if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
        }

    def head(self) -> str:
        heads = self.objects("pods", "ray.io/node-type=head")
        (name,) = (pod["metadata"]["name"] for pod in heads if "deletionTimestamp" not in pod["metadata"])
        return str(name)

    def kill(self, pod: str) -> None:
        """Kill a pod at once, as when its node is lost."""
        self.kubectl("delete", "pod", pod, "--grace-period", "0", "--force")
        until(lambda: pod not in self.pods(), f"{pod} is gone", 60.0)

    @contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """Drain a node while entered, and uncordon it afterwards."""
        workers = f"app.kubernetes.io/instance={self.name},ray.io/node-type=worker"
        patience = ("--timeout", "60s", "--pod-selector", workers)
        try:
            run("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", *patience, check=False)
            yield
        finally:
            run("kubectl", "uncordon", node)

    def status(self) -> Json:
        """Return the output of `peagle cluster status`."""
        place = ["--release", self.name, "--namespace", self.namespace]
        found: Json = json.loads(run(sys.executable, "-m", "peagle.cli", "cluster", "status", "--json", *place))
        return found

    def replicas(self) -> int:
        """Return the number of ready replicas of its models."""
        models = (self.status()["fleet"] or {"models": []})["models"]
        return sum(each["state"] == "ready" for model in models for each in model["replicas"])

    def wait_for_replicas(self, count: int, within_s: float) -> None:
        # Each check starts a process in the head pod, on the cores on which the replicas load.
        until(lambda: self.replicas() == count, f"{count} replicas serve", within_s, every_s=15.0)

    def problems(self) -> str:
        found = self.status()
        return "\n".join(each["problem"] for each in (*found["services"], *found["pods"]))

    def ask(self, path: str) -> str:
        """Return the Service's answer to a request from a worker, or the error."""
        pod = next(iter(self.workers()))
        script = f"import urllib.request as u; print(u.urlopen('http://{self.name}:8000{path}').read().decode())"
        return self.kubectl("exec", pod, "--container", "ray-worker", "--", "python", "-c", script, check=False)

    def wait_until_running(self) -> float:
        return until(self.is_running, "the RayService runs", READY_TIMEOUT_S)

    def test(self) -> str:
        """`helm test`: every model answers."""
        return self.helm("test", self.name, "--logs", "--timeout", "10m")

    def left(self) -> str:
        """Return what `kubectl get all` still shows."""
        return self.kubectl("get", "all,rayservices,rayclusters", "--output", "name", "--ignore-not-found").strip()

    @contextmanager
    def load(self, what: str) -> Iterator[Load]:
        """Run clients against the Service continuously, half of them streaming; their results are set afterwards."""
        self.kubectl("delete", "pod", "clients", "--ignore-not-found")
        self.kubectl("apply", "--filename", "-", given=json.dumps(self._clients()))
        until(lambda: "answered" in self._said(), "a client has its first answer", 120.0)
        load = Load()
        yield load
        time.sleep(5.0)
        self.kubectl("exec", "clients", "--", "sh", "-c", "kill 1")
        until(lambda: "in all" in self._said(), "the clients have ended", 700.0)
        *lines, last = self._said().splitlines()
        total = json.loads(last.partition("in all ")[2])
        load.answered, load.longest_gap_s = total["answered"], total["longest_gap_s"]
        load.lost += [line for line in lines if line.startswith("lost")]
        print(f"{what}: {load.answered} answered, {len(load.lost)} lost, longest gap {load.longest_gap_s} s")
        print(*load.lost[:20], sep="\n")
        self.kubectl("delete", "pod", "clients", "--wait=false")

    def _said(self) -> str:
        return self.kubectl("logs", "clients", "--ignore-errors", check=False)

    def _clients(self) -> Json:
        command = ["python", "-c", LOAD.read_text(encoding="utf-8"), f"http://{self.name}:8000", str(CLIENTS)]
        container = {
            "name": "clients",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "clients", "namespace": self.namespace},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
