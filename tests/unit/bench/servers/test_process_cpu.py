"""Role and CPU time of each process of a server."""

import os
import subprocess
import sys

import pytest

from peagle.bench.servers.process_cpu import OTHER, read_tree, role_of, used_s


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["VLLM::EngineCore", ""], "engine core"),
        (["VLLM::Worker"], "engine worker"),
        (["ray::ServeReplica:peagle:Ingress"], "ingress"),
        (["ray::ServeReplica:peagle:Router.report"], "Router"),
        (["ray::ServeReplica:peagle:PeagleServer:peagle-embedded.initialize_and_get_metadata"], "model replica"),
        (["ray::ServeReplica:peagle:PeagleServer:Ingress-like"], "model replica"),
        (["ray::ServeController.listen_for_change"], "Serve's controller"),
        (["ray::ProxyActor"], "Serve's proxy"),
        (["/x/ray/core/src/ray/raylet/raylet", "--a=b"], "raylet"),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--a=/x/raylet/y"], "GCS"),
        (["ray::RuntimeEnvAgent"], "Ray's agents and logs"),
        (["python", "-u", "/x/ray/_private/log_monitor.py"], "Ray's agents and logs"),
        (["ray::IDLE"], "Ray's other workers"),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "1"], "API server"),
        (["python", "-m", "peagle.cli", "serve", "deployment.yaml"], "launcher"),
        (["python", "-c", "pass"], OTHER),
        ([], OTHER),
    ],
)
def test_a_process_is_known_by_its_title(command: list[str], role: str) -> None:
    assert role_of(command) == role


def test_what_a_new_process_used_counts_whole_and_what_was_before_does_not() -> None:
    before = {(1, 0.0): ("a", 5.0), (2, 0.0): ("b", 1.0)}
    after = {(1, 0.0): ("a", 6.0), (3, 0.0): ("a", 0.5), (1, 9.0): ("b", 4.0)}
    assert used_s(before, after) == {"b": 4.0, "a": 1.5}
    assert list(used_s(before, after)) == ["b", "a"]


def test_a_tree_is_read_with_its_children_and_a_missing_one_is_empty() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        numbers = {number for number, _ in read_tree(os.getpid())}
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= numbers
    assert read_tree(child.pid) == {}
