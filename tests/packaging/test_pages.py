"""The pages are short and true: links and paths lead somewhere, commands run, and messages are the code's."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle import __version__
from peagle.config import load_deployment
from support.imports import MODULES, parsed
from support.kubernetes.rendered_chart import ready_values, render
from support.paths import REPOSITORY as ROOT

README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
TROUBLESHOOTING = ROOT / "platform" / "peagle" / "TROUBLESHOOTING.md"
PAGES = sorted(
    path
    for folder in ("dashboards", "deployments", "helm", "platform", "tests")
    for path in (ROOT / folder).rglob("*.md")
)
PAGES += [README, CHANGELOG]
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

README_WORDS_MAX = 1200
PAGE_LINES_MAX = 300

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A path of the repository, or of the folder that a page is about: with a slash, or with the ending of a source file.
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|yaml|yml|json|toml|tpl|txt|Dockerfile|safetensors))")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What users write or what a command makes, and files of other projects.
ELSEWHERE = {
    *(
        "chats.jsonl",
        "others.jsonl",
        "model.yaml",
        "plan.yaml",
        "config.json",
        "result.json",
        "report.md",
        "tokenizer.json",
    ),
    *("sbom.cdx.json", "deployments/x.yaml", "values/NAME.yaml", "bench-results/"),
}
# Names that stand for any: `unit/ROOM/test_MODULE.py`, `policies/NAME.py`.
ANY = re.compile(r"[A-Z]{3,}")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as Git hosts write them."""
    texts = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def paths_in(page: Path) -> Iterator[str]:
    """Yield the paths that a page names in code spans."""
    for span in SPAN.findall(prose(page)):
        if PATH.fullmatch(span) and span not in ELSEWHERE and not ANY.search(span.removesuffix("README.md")):
            yield span


def places(page: Path) -> Iterator[Path]:
    """Where a page's paths may start: its folder and those above it, the package, and the chart."""
    yield from (folder for folder in page.parents if folder.is_relative_to(ROOT))
    yield from (ROOT / "platform" / "peagle", ROOT / "helm" / "peagle")


def is_there(path: str, page: Path) -> bool:
    """Whether a path leads somewhere; a bare file name may also lie below the page's folder."""
    near = any((place / path).exists() for place in places(page))
    return near or ("/" not in path.rstrip("/") and any(page.parent.rglob(path.rstrip("/"))))


@EACH
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != CHANGELOG], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    assert [path for path in paths_in(page) if not is_there(path, page)] == []


def test_a_path_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`policies/gone.py` and `gone.md`, not `--flag` or `a.b`\n```sh\n`in/a/fence.py`\n```\n", encoding="utf-8"
    )
    assert list(paths_in(page)) == ["policies/gone.py", "gone.md"]
    assert not any(is_there(path, README) for path in paths_in(page))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != CHANGELOG], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_can_be_read_at_one_sitting(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= PAGE_LINES_MAX


def test_readme_is_for_the_first_hour() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= README_WORDS_MAX


def test_every_room_that_a_newcomer_changes_has_a_page() -> None:
    linked = {(README.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(README))}
    package = ROOT / "platform" / "peagle"
    linked |= {(package / link.partition("#")[0]).resolve() for link in LINK.findall(prose(package / "README.md"))}
    assert {page for page in PAGES if page.name == "README.md" and page != README} - linked <= {
        ROOT / "deployments" / "embedded" / "README.md",
        ROOT / "deployments" / "images" / "local" / "README.md",
    }


def commands(page: Path) -> list[list[str]]:
    """The shell commands of a page, without comments."""
    lines = "\n".join(text for language, text in FENCE.findall(page.read_text(encoding="utf-8")) if language == "sh")
    return [words for line in lines.replace("\\\n", " ").splitlines() if (words := shlex.split(line, comments=True))]


def peagle(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_version_and_validate_run_as_the_pages_have_them() -> None:
    assert peagle("version").stdout.split()[0] == __version__
    done = peagle("validate", "deployments/embedded.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_of_peagle_in_readme_is_one() -> None:
    used = {words[1] for words in commands(README) if Path(words[0]).name == "peagle"}
    assert used >= {"chat", "validate", "serve"}
    told = peagle("--help").stdout
    assert [name for name in used if f"  {name} " not in told] == []


def test_every_make_target_that_a_page_names_is_one() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        (page.name, target)
        for page in PAGES
        for text in (*SPAN.findall(prose(page)), *(text for _, text in FENCE.findall(page.read_text(encoding="utf-8"))))
        for target in re.findall(r"(?:^|[\s=1])make ((?:[a-z]+(?:-[a-z]+)*)(?: [a-z]+-[a-z]+)*)", text, re.MULTILINE)
    }
    assert named
    assert {(page, name) for page, names in named for name in names.split() if name not in made} == set()


def test_the_releases_that_the_chart_s_page_installs_render() -> None:
    text = (ROOT / "helm/peagle/README.md").read_text(encoding="utf-8")
    installed = re.findall(r"helm install peagle helm/peagle(?: -f helm/peagle/values/([\w-]+)\.yaml)?", text)
    assert "" in installed
    for name in installed:
        assert render(ready_values(name) if name else {}).one("RayService")


@pytest.mark.parametrize(
    ("page", "folder"), [("helm/peagle/README.md", "helm/peagle/values"), ("deployments/README.md", "deployments")]
)
def test_the_page_s_table_has_every_file_of_its_folder(page: str, folder: str) -> None:
    rows = set(re.findall(r"^\| `([\w.-]+\.yaml)` \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == {path.name for path in (ROOT / folder).glob("*.yaml")}


def test_readmes_own_deployment_is_one(tmp_path: Path) -> None:
    written = next(text for language, text in FENCE.findall(README.read_text(encoding="utf-8")) if language == "yaml")
    file = tmp_path / "model.yaml"
    file.write_text(written, encoding="utf-8")
    assert load_deployment(file).name == "my-model"


def test_the_image_of_the_pages_has_the_package_s_version() -> None:
    for page in PAGES:
        if page != CHANGELOG:
            assert set(re.findall(r"peagle:(\d[\w.]*)-", page.read_text(encoding="utf-8"))) <= {__version__}, page


def test_every_message_of_the_troubleshooting_page_is_the_code_s() -> None:
    said = [
        node.value
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    said += [
        (ROOT / "helm/peagle/templates/_refusals.tpl").read_text(encoding="utf-8"),
        (ROOT / "Makefile").read_text(),
    ]
    said += [(ROOT / "deployments/gpt-oss-20b.yaml").read_text(encoding="utf-8")]
    messages = re.findall(r"^\| `([^`]+)` \|", TROUBLESHOOTING.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(messages) >= 20
    gone = [
        message
        for message in messages
        if not all(any(part.strip() in text for text in said) for part in message.split("…"))
    ]
    assert gone == [], "their words have changed: change the page too"
