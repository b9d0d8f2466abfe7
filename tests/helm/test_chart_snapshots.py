"""What the chart renders to, pinned: a change of any object shows in review.

`PEAGLE_UPDATE_SNAPSHOTS=1 make helm-test` rewrites them.
"""

import os
import re
from pathlib import Path

import pytest

from support.kubernetes.rendered_chart import MINIMAL, render

SNAPSHOTS = Path(__file__).parent / "snapshots"
PINNED = {"defaults": {}, "minimal": MINIMAL}
# The one thing that differs each time.
TOKEN = re.compile(r"(?<=auth_token: )\S+")


@pytest.mark.parametrize("name", PINNED)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    texts = render(PINNED[name]).texts
    parts = [f"# {path}\n{text.strip()}\n" for path, text in sorted(texts.items()) if text.strip()]
    text = TOKEN.sub("(random)", "\n".join(parts))
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("PEAGLE_UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "look at the difference; PEAGLE_UPDATE_SNAPSHOTS=1 accepts it"
