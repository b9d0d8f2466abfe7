"""The images' Dockerfiles, parsed into instructions."""

import re
from pathlib import Path

from support.paths import DEPLOYMENTS

IMAGES = sorted((DEPLOYMENTS / "images").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction with its argument, lines joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def stages(path: Path) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its `FROM` first; those before the first stage are left out."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions(path):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def last_stage(path: Path) -> list[tuple[str, str]]:
    return stages(path)[-1]
