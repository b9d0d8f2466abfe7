"""Series of vLLM and Ray that dashboards use exist in the installed versions."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from dashboards import external


def sources(package: str, pattern: str) -> str:
    """The text of a package's modules, found without running any."""
    top, _, inner = package.partition(".")
    spec = find_spec(top)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / inner.replace(".", "/")
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern)))


@pytest.mark.parametrize("series", sorted(external.VLLM))
def test_vllm_has_the_series(series: str) -> None:
    name = series.removeprefix("ray_vllm_").removesuffix("_bucket")
    assert f'"vllm:{name}"' in sources("vllm.v1.metrics", "loggers.py")


@pytest.mark.parametrize("series", sorted(external.RAY))
def test_ray_has_the_series(series: str) -> None:
    text = sources("ray.serve._private", "*.py") + sources("ray.dashboard.modules.reporter", "reporter_agent.py")
    assert f'"{series.removeprefix("ray_")}"' in text


def test_every_series_of_others_is_shown_or_watched() -> None:
    folder = Path(external.__file__).parent / "generated"
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert {series for series in external.SERIES if series not in text} == set()
