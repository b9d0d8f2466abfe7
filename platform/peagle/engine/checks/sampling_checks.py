"""Checks the default sampling parameters: a default `min_p` prevents drafts for sampled requests."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peagle.config import Deployment
from peagle.engine.checkpoint import Folder
from peagle.engine.checks.check import Check
from peagle.errors import ConfigError

GENERATION_CONFIG = "generation_config.json"
MIN_P = "min_p"


def undrafted_by(defaults: Mapping[str, Any]) -> str | None:
    """Return which default prevents drafts for sampled requests, with the fix; None if there is none."""
    if not (min_p := defaults.get(MIN_P)):
        return None
    fix = "Write engine.override_generation_config: {min_p: 0}, unless clients need it more than speed."
    return f"min_p is {min_p} by default, and a sampled request with min_p gets no drafts. {fix}"


def examine_sampling(deployment: Deployment) -> tuple[Check, ...]:
    """Report a drafter that would only draft for greedy requests, as far as this is known before the start."""
    if deployment.drafter is None or not deployment.speculates:
        return ()
    if (said := undrafted_by(_defaults(deployment))) is not None:
        return (Check("drafter", "sampling", "caution", said),)
    return ()


def _defaults(deployment: Deployment) -> dict[str, Any]:
    """Return the defaults as vLLM reads them; those of a remote repository are unknown until it is downloaded."""
    engine = deployment.engine
    found: dict[str, Any] = {}
    source = engine.get("generation_config") or "auto"
    folder = Path(deployment.target.source if source == "auto" else str(source))
    if source != "vllm" and (folder / GENERATION_CONFIG).is_file():
        with contextlib.suppress(ConfigError):  # the engine itself rejects it
            found = Folder(folder, "engine.generation_config").read_json(GENERATION_CONFIG)
    own = engine.get("override_generation_config")
    return {**found, **(own if isinstance(own, dict) else {})}
