import os
import socket
from pathlib import Path
from typing import Any

import pytest

from peagle.config import Deployment, parse_deployment
from peagle.errors import ConfigError, StartupError
from peagle.serve.launch import machine_checks
from peagle.serve.launch.machine_checks import (
    GIB,
    check_engine,
    check_gpus,
    check_machine,
    check_memory,
    check_port,
    replica_memory_bytes,
    visible_gpus,
)
from peagle.serve.launch.ray_cluster import check_accelerators


def _deployment(**fields: Any) -> Deployment:
    raw = {"name": "m", "target": {"source": "org/target"}, "speculation": {"enabled": False}}
    return parse_deployment({"resources": {"accelerator": "cpu"}, **raw, **fields}, origin="test")


def test_a_port_in_use_is_named_with_its_process() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(
            StartupError, match=rf"port {port} on 127\.0\.0\.1 is in use by .* \(process {os.getpid()}\)"
        ):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="--port"):
        check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "127.0.0..1", "a" * 64])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        check_port(host, 8000)


def test_without_vllm_the_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "installed_engine", lambda: (None, None))
    with pytest.raises(StartupError, match=r"vLLM is not installed.*peagle\[cpu\]"):
        check_engine([_deployment()])


def test_an_unknown_vllm_is_refused_only_where_live_depth_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "installed_engine", lambda: ("cpu", "9.1.0"))
    drafter = {"source": "org/head", "trained_depth": 8}
    live = _deployment(drafter=drafter, speculation={"enabled": True})
    fixed = _deployment(drafter=drafter, speculation={"enabled": True, "live_depth": False})
    check_engine([fixed, _deployment()])
    with pytest.raises(StartupError, match=r"9\.1\.0 is installed"):
        check_engine([live])


def test_a_gpu_model_on_the_cpu_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "installed_engine", lambda: ("cpu", "0.29.0"))
    with pytest.raises(StartupError, match="needs a GPU"):
        check_engine([_deployment(resources={"accelerator": "gpu"})])


def test_a_model_that_is_compiled_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_checks, "installed_engine", lambda: ("cpu", "0.29.0"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(StartupError, match=r"no C\+\+ compiler 'g\+\+'.*enforce_eager"):
        check_engine([_deployment()])
    check_engine([_deployment(engine={"enforce_eager": True})])
    other = tmp_path / "other"
    other.touch(0o755)
    monkeypatch.setenv("CXX", str(other))
    check_engine([_deployment()])


def test_gpus_are_counted_over_replicas_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "visible_gpus", lambda: 3)
    wide = _deployment(replicas={"min": 2, "max": 2}, resources={"accelerator": "gpu", "tensor_parallel_size": 2})
    with pytest.raises(StartupError, match="m needs 4 GPUs, but this machine has 3"):
        check_gpus([wide])
    check_gpus([_deployment(), _deployment(resources={"accelerator": "gpu", "tensor_parallel_size": 3})])


def test_visible_gpus_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(tmp_path) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus(tmp_path) == 1
    for hidden, left in (("", 0), ("-1", 0), ("1,-1,0", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert visible_gpus(tmp_path) == left


def test_too_little_memory_names_need_and_rest() -> None:
    deployment = _deployment(replicas={"min": 3, "max": 3})
    with pytest.raises(StartupError, match=r"m needs about [\d.]+ GiB of memory but 4\.0 GiB is free"):
        check_memory([deployment], 4 * GIB)
    check_memory([deployment], 64 * GIB)
    check_memory([_deployment(resources={"accelerator": "gpu"})], 0)


def test_weights_and_cache_count_as_memory(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    engine = {"kv_cache_memory_bytes": 500}
    local = _deployment(target={"source": str(tmp_path)}, engine=engine)
    assert replica_memory_bytes(local) - replica_memory_bytes(_deployment(engine=engine)) == 1000
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    for dtype, bytes_ in (("bfloat16", 1000), ("float32", 2000)):
        named = _deployment(target={"source": str(tmp_path)}, engine={**engine, "dtype": dtype})
        assert replica_memory_bytes(named) - replica_memory_bytes(_deployment(engine=engine)) == bytes_
    assert (
        replica_memory_bytes(_deployment(engine={"kv_cache_memory_bytes": 700}))
        - replica_memory_bytes(_deployment(engine=engine))
        == 200
    )


def test_wrong_engine_arguments_are_named_before_memory_is_counted() -> None:
    deployment = _deployment(engine={"kv_cache_memory_bytes": "512MiB"})
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_memory_bytes = '512MiB': vLLM takes"):
        check_machine([deployment], "127.0.0.1", port)


def test_a_kind_of_gpu_that_is_not_here_is_named() -> None:
    wanted = _deployment(resources={"accelerator": "gpu", "accelerator_type": "B200"})
    check_accelerators([wanted, _deployment()], {"GPU": 1.0, "accelerator_type:B200": 1.0})
    for present, told in (
        ({"accelerator_type:H100": 1.0}, r"this machine has H100\. Write H100, or omit it\."),
        ({"accelerator_type:L40": 1.0}, r"this machine has L40\. Omit it\."),
        ({"CPU": 2.0}, r"no GPU type known to Ray\. Omit it\."),
    ):
        with pytest.raises(ConfigError, match=rf"m: resources\.accelerator_type = 'B200': .*{told}"):
            check_accelerators([wanted], present)
    check_accelerators(
        [_deployment(resources={"accelerator": "gpu", "accelerator_type": "A10"})], {"accelerator_type:A10G": 1.0}
    )
