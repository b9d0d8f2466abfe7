"""The API's README matches the code: every route, every code, every limit."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel

import peagle.api
from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import ENDPOINTS, NOT_GENERATED

FOLDER = Path(peagle.api.__file__).parent
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
# Settings that are not limits.
OTHERS = {"keys_file", "metrics", "cors_origins"}


def limits(settings: BaseModel, above: str = "") -> Iterator[tuple[str, str]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from limits(value, f"{name}.")
        elif name not in OTHERS:
            yield f"{above}{name}", json.dumps(value)


def test_every_limit_is_there_with_its_default() -> None:
    section = PAGE.partition("\n## Limits\n")[2]
    assert re.findall(r"^\| `([\w.]+)` \| (\S+) \|", section, re.MULTILINE) == [*limits(ApiSettings())]


def test_every_route_is_there() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    async def handler() -> None:
        """Matches any value."""

    for bind in ENDPOINTS.values():
        bind(app)(handler)
    section = PAGE.partition("\n## Routes\n")[2].partition("\n## ")[0]
    for route in app.routes:
        path = re.sub(r":path\}", "}", route.path)  # type: ignore[attr-defined]
        if path not in NOT_GENERATED:
            assert f"{path}`" in section, path


def test_every_code_of_an_error_is_there() -> None:
    section = PAGE.partition("\n## Refusals\n")[2].partition("\n## ")[0]
    codes = set()
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                codes.add(node.value.value)
    assert len(codes) > 10
    assert {code for code in codes if isinstance(code, str) and f"`{code}`" not in section} == set()
