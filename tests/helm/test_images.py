"""The chart's assumptions about the images, and the settings that it passes to them."""

from pathlib import Path

import pytest

import peagle
from support.kubernetes.dockerfiles import IMAGES, last_stage
from support.kubernetes.rendered_chart import MINIMAL, REPOSITORY, at, laid_over, ready_values, render


def test_there_is_an_image_for_each_variant_of_the_chart() -> None:
    assert [path.stem for path in IMAGES] == ["cpu", "gpu"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_it_runs_as_the_user_that_the_chart_gives_its_pods(path: Path) -> None:
    context = render(MINIMAL).worker["spec"]["securityContext"]
    (user,) = [rest for word, rest in last_stage(path) if word == "USER"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_tools_of_the_build_stay_behind(path: Path) -> None:
    words = " ".join(rest for _, rest in last_stage(path))
    assert "--from=build" in words
    assert "environment.sh" not in words


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_version_inside_is_the_chart_s(path: Path) -> None:
    found = last_stage(path)
    assert ("ARG", f"VERSION={peagle.__version__}") in found
    assert any(word == "RUN" and "$(peagle version)" in rest for word, rest in found)
    tag = render(laid_over(MINIMAL, at("image.variant", path.stem))).container["image"]
    assert f"-t {tag} ." in path.read_text(encoding="utf-8")


def test_the_embedded_model_is_where_the_cpu_values_look_for_it() -> None:
    copied = [rest.split() for word, rest in last_stage(IMAGES[0]) if word == "COPY"]
    assert ["deployments/embedded", "/srv/peagle/deployments/embedded"] in copied
    deployment = ready_values("embedded-cpu")["models"]["embedded"]["deployment"]
    for part in ("target", "drafter"):
        inside = Path(deployment[part]["source"]).relative_to("/srv/peagle")
        assert (REPOSITORY / inside / "config.json").is_file()


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_cache_is_where_the_chart_mounts_it(path: Path) -> None:
    mounts = {entry["name"]: entry["mountPath"] for entry in render(MINIMAL).container["volumeMounts"]}
    words = " ".join(rest for _, rest in last_stage(path)).split()
    for variable in ("XDG_CACHE_HOME", "HOME"):
        assert f"{variable}={mounts['model-cache']}" in words
