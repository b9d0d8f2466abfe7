from pathlib import Path
from typing import Any

import pytest

from peagle.api.api_settings import ApiSettings, read_settings
from peagle.errors import ConfigError
from peagle.serve.launch.serving_arguments import CPU_CACHE_BYTES, engine_settings, read_deployments


def _raw(name: str = "m", **fields: Any) -> dict[str, Any]:
    raw = {"name": name, "target": {"source": "org/target"}, "speculation": {"enabled": False}, **fields}
    return {"resources": {"accelerator": "cpu"}, **raw}


def test_one_deployment_needs_no_list() -> None:
    assert [deployment.name for deployment in read_deployments(_raw())] == ["m"]


def test_several_models_keep_their_order() -> None:
    assert [deployment.name for deployment in read_deployments([_raw("b"), _raw("a")])] == ["b", "a"]


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"args\.deployments\[1\]\.name = 'm': another deployment has this name"):
        read_deployments([_raw(), _raw()])


@pytest.mark.parametrize("sources", [None, [], [3], 7])
def test_what_names_no_deployment_is_refused(sources: object) -> None:
    with pytest.raises(ConfigError, match=r"args\.deployments"):
        read_deployments(sources)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        read_deployments([str(tmp_path / "absent.yaml")])


def test_http_settings_default_and_name_a_wrong_field() -> None:
    assert read_settings(None) == ApiSettings()
    assert read_settings(ApiSettings(max_json_depth=9)).max_json_depth == 9
    with pytest.raises(ConfigError, match=r"args\.api\.max_body_byte"):
        read_settings({"max_body_byte": 1})


def test_a_cpu_replica_has_a_bounded_cache_unless_its_file_says_otherwise() -> None:
    (default,) = read_deployments(_raw())
    (chosen,) = read_deployments(_raw(engine={"kv_cache_memory_bytes": 123}))
    (gpu,) = read_deployments(_raw(resources={"accelerator": "gpu"}))
    assert engine_settings(default)["kv_cache_memory_bytes"] == CPU_CACHE_BYTES
    assert engine_settings(chosen)["kv_cache_memory_bytes"] == 123
    assert "kv_cache_memory_bytes" not in engine_settings(gpu)
