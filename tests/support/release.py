"""A release of the chart on the Kubernetes that KUBECONFIG names, through `helm` and `kubectl`, as users have it.

Environment:
    KUBECONFIG              the cluster
    PEAGLE_TEST_IMAGE       the image on its nodes; by default peagle:0.1.0-cpu
    PEAGLE_TEST_VALUES      Helm values that this cluster needs, such as those of an older operator
"""

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import REPOSITORY

Json = dict[str, Any]

IMAGE = os.environ.get("PEAGLE_TEST_IMAGE", "peagle:0.1.0-cpu")
OWN_VALUES = os.environ.get("PEAGLE_TEST_VALUES")
CHART = REPOSITORY / "helm" / "peagle"
LOAD = Path(__file__).parent / "service_load.py"
READY_TIMEOUT_S = 600.0
CLIENTS = 4


def run(*command: str, check: bool = True, given: str | None = None, timeout_s: float = 600.0) -> str:
    """Run a command and return what it printed; a failure says what it said."""
    ended = subprocess.run(command, capture_output=True, text=True, input=given, timeout=timeout_s, check=False)
    if check and ended.returncode:
        raise AssertionError(f"{' '.join(command)}: {ended.stderr or ended.stdout}")
    return ended.stdout if not ended.returncode else ended.stderr


def until(holds: Callable[[], bool], what: str, within_s: float) -> float:
    """Wait until something holds; return the seconds that it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(1.0)
    return time.monotonic() - began_s


def prepared_chart(folder: Path) -> Path:
    """The chart as `helm dependency update` leaves it; an empty operator where its chart has not been fetched."""
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


@dataclass(frozen=True)
class Load:
    """What clients of the Service saw: requests that were answered whole, and the others, each with when and why."""

    answered: int
    lost: list[str]
    longest_gap_s: float


@dataclass(frozen=True)
class Release:
    """One release, in a namespace of its own."""

    chart: Path
    name: str
    namespace: str

    def helm(self, *arguments: str, check: bool = True) -> str:
        return run("helm", *arguments, "--namespace", self.namespace, check=check)

    def apply(self, verb: str, *arguments: str, check: bool = True) -> str:
        """`helm install` or `helm upgrade`, with this cluster's image and values."""
        repository, _, tag = IMAGE.rpartition(":")
        image = ["--set", f"image.repository={repository}", "--set", f"image.tag={tag}"]
        own = ["--values", OWN_VALUES] if OWN_VALUES else []
        return self.helm(verb, self.name, str(self.chart), *image, *own, *arguments, check=check)

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

    def wait_until_running(self) -> float:
        return until(self.is_running, "the RayService runs", READY_TIMEOUT_S)

    def test(self) -> str:
        """`helm test`: every model answers."""
        return self.helm("test", self.name, "--logs", "--timeout", "10m")

    def left(self) -> str:
        """What `kubectl get all` still shows."""
        return self.kubectl("get", "all,rayservices,rayclusters", "--output", "name", "--ignore-not-found").strip()

    @contextmanager
    def load(self) -> Iterator[list[Load]]:
        """Clients ask the Service all the time, half of them for streams; the list has their `Load` at the end."""
        pod = json.dumps(self._clients())
        self.kubectl("delete", "pod", "clients", "--ignore-not-found")
        self.kubectl("apply", "--filename", "-", given=pod)
        until(lambda: "answered" in self._said(), "a client has its first answer", 120.0)
        found: list[Load] = []
        yield found
        time.sleep(5.0)
        self.kubectl("exec", "clients", "--", "sh", "-c", "kill 1")
        until(lambda: "in all" in self._said(), "the clients have ended", 700.0)
        *lines, last = self._said().splitlines()
        total = json.loads(last.partition("in all ")[2])
        lost = [line for line in lines if line.startswith("lost")]
        found.append(Load(total["answered"], lost, total["longest_gap_s"]))
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
