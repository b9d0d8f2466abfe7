"""Compiled models are found again, whichever backend compiled them."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peagle.engine.patches import compile_cache


def loaded_by(compiled: object, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what loading yields with the seam installed, if torch reads `compiled` from disk."""
    kept = SimpleNamespace(_artifacts=SimpleNamespace(compiled_fn=compiled))
    load: Callable[..., Any] = lambda _file, **_options: kept  # noqa: E731
    monkeypatch.setattr(torch.compiler, "load_compiled_function", load)
    compile_cache.install()
    compile_cache.install()
    assert torch.compiler.load_compiled_function.__wrapped__ is load  # type: ignore[attr-defined]
    return torch.compiler.load_compiled_function(None, f_globals={})  # type: ignore[arg-type]


def test_inductors_function_needs_no_finishing(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> int:
        return 3

    found = loaded_by(compiled, monkeypatch)._artifacts.compiled_fn
    found.finalize_loading(object())
    assert found() == 3


def test_vllms_own_is_finished_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[object] = []
    own = SimpleNamespace(finalize_loading=finished.append)
    loaded_by(own, monkeypatch)._artifacts.compiled_fn.finalize_loading("config")
    assert finished == ["config"]


def test_vllm_loads_through_the_seam() -> None:
    source = pytest.importorskip("vllm.compilation.decorators")._try_load_aot_compiled_fn.__code__
    assert {"load_compiled_function", "finalize_loading", "_artifacts", "compiled_fn"} <= set(source.co_names)


def engine_on(device: str) -> SimpleNamespace:
    return SimpleNamespace(device_config=SimpleNamespace(device_type=device))


def test_a_processor_of_another_kind_does_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("vllm.compilation.caching")
    monkeypatch.setattr(caching, "aot_compile_hash_factors", lambda _config: ["model"])
    compile_cache.install()
    compile_cache.install()
    here = caching.aot_compile_hash_factors(engine_on("cpu"))
    assert here == ["model", compile_cache.instructions()]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    narrow = caching.aot_compile_hash_factors(engine_on("cpu"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "amx_tile": True, "cores": 2})
    wide = caching.aot_compile_hash_factors(engine_on("cpu"))
    assert wide == ["model", "x86_64 AVX512 amx_tile"] != narrow


def test_gpu_models_are_found_on_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("vllm.compilation.caching")
    monkeypatch.setattr(caching, "aot_compile_hash_factors", lambda _config: ["model"])
    compile_cache.install()
    assert caching.aot_compile_hash_factors(engine_on("cuda")) == ["model"]


def test_vllm_still_has_the_device_type_where_it_is_read() -> None:
    config = pytest.importorskip("vllm.config")
    assert "device_type" in {field.name for field in fields(config.DeviceConfig)}
    assert "device_config" in {field.name for field in fields(config.VllmConfig)}


def test_vllm_names_compiled_models_by_these_factors() -> None:
    decorators = pytest.importorskip("vllm.compilation.decorators")
    assert "aot_compile_hash_factors" in inspect.getsource(decorators)
