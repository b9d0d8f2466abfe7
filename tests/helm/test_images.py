"""The images' recipes, read as the builder reads them: small final stage, no root, what the chart expects inside."""

import re
from pathlib import Path

import pytest

import peagle
from support.rendered_chart import MINIMAL, REPOSITORY, at, laid_over, ready_values, render

IMAGES = sorted((REPOSITORY / "deployments" / "images").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction with its argument, lines joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def last_stage(path: Path) -> list[tuple[str, str]]:
    found = instructions(path)
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def test_there_is_an_image_for_each_variant_of_the_chart() -> None:
    assert [path.stem for path in IMAGES] == ["cpu", "gpu"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_every_image_that_it_is_made_of_can_be_named_by_digest(path: Path) -> None:
    found = instructions(path)
    bases = [rest for word, rest in found if word == "FROM"]
    named = {rest.partition("=")[0] for word, rest in found if word == "ARG"}
    assert len(bases) == 3
    for base in bases:
        variable = re.fullmatch(r"\$\{(\w+)\}(?: AS \w+)?", base)
        assert variable is not None, base
        assert variable[1] in named


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_it_runs_as_the_user_that_the_chart_gives_its_pods(path: Path) -> None:
    context = render(MINIMAL).worker["spec"]["securityContext"]
    (user,) = [rest for word, rest in last_stage(path) if word == "USER"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_tools_of_the_build_stay_behind(path: Path) -> None:
    words = " ".join(rest for _, rest in last_stage(path))
    assert "--from=build" in words
    assert "uv pip" not in words
    assert "--from=uv" not in words


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_version_inside_is_the_chart_s(path: Path) -> None:
    found = last_stage(path)
    assert ("ARG", f"VERSION={peagle.__version__}") in found
    assert any(word == "RUN" and "$(peagle version)" in rest for word, rest in found)
    tag = render(laid_over(MINIMAL, at("image.variant", path.stem))).container["image"]
    assert f"-t {tag} ." in path.read_text(encoding="utf-8")


def test_the_embedded_model_is_where_the_cpu_values_look_for_it() -> None:
    copied = [rest.split()[-2:] for word, rest in last_stage(IMAGES[0]) if word == "COPY"]
    assert ["deployments", "/srv/peagle/deployments"] in copied
    deployment = ready_values("embedded-cpu")["models"]["embedded"]["deployment"]
    for part in ("target", "drafter"):
        inside = Path(deployment[part]["source"]).relative_to("/srv/peagle")
        assert (REPOSITORY / inside / "config.json").is_file()


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_cache_is_where_the_chart_mounts_it(path: Path) -> None:
    mounts = {entry["name"]: entry["mountPath"] for entry in render(MINIMAL).container["volumeMounts"]}
    assert f"XDG_CACHE_HOME={mounts['model-cache']}" in " ".join(rest for _, rest in last_stage(path))
