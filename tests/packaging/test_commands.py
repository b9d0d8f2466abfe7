"""`make bench` measures what README.md reports."""

import shlex
import subprocess

from support.paths import REPOSITORY

ROOT = REPOSITORY


def test_make_bench_is_the_command_that_the_table_was_made_with() -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", "--always-make", "--assume-old=.venv/.ready-cpu", "bench", "ENGINE=cpu"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    commands = recipe.replace("\\\n", " ").splitlines()
    made = [shlex.split(line) for line in commands if "peagle bench" in line]
    page = (ROOT / "platform/peagle/bench/README.md").read_text(encoding="utf-8").partition("## On a CPU")[2]
    written = page.split("```")[1].removeprefix("sh\n").replace("\\\n", " ")
    assert made == [shlex.split(written)]
