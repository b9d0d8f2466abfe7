"""The way into vLLM's engine core process: which versions are known, which scheduler to build, which calls it answers.

vLLM resolves `live_depth_scheduler` by name while it builds an engine core, so a process without live depth never runs
any of this. Importing this module imports no vllm.
"""

import functools
from typing import Any

from peagle.errors import ConfigError, StartupError

# Live depth reaches into the scheduler, which is no public interface: it is read and tested for these releases only.
KNOWN_VERSIONS = ("0.29",)


def require_known_vllm() -> None:
    """
    Raises:
        StartupError: Live depth does not know the installed vLLM.
    """
    # The CPU build has no package metadata named vllm, so importlib.metadata cannot say.
    from vllm import __version__ as version

    if ".".join(version.split(".")[:2]) not in KNOWN_VERSIONS:
        known = ", ".join(f"{known}.x" for known in KNOWN_VERSIONS)
        raise StartupError(
            f"Live depth knows vLLM {known}, not {version}",
            "Install a known version, or set speculation.live_depth to false to serve at depth_static",
        )


def live_depth_scheduler(**arguments: Any) -> Any:
    """Build the scheduler of an engine core; the value of `scheduler_cls`. Takes vLLM's scheduler arguments.

    Raises:
        StartupError: Live depth does not know the installed vLLM.
    """
    require_known_vllm()
    register()
    from peagle.engine.scheduler import AsyncLiveDepthScheduler, LiveDepthScheduler

    overlapped = arguments["vllm_config"].scheduler_config.async_scheduling
    return (AsyncLiveDepthScheduler if overlapped else LiveDepthScheduler)(**arguments)


def register() -> None:
    """Let engine cores of this process answer `peagle_set_depths` and `peagle_step_stats`. Safe to repeat."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.peagle_set_depths = _set_depths
    EngineCore.peagle_step_stats = _step_stats
    if not hasattr(EngineCore.post_step, "__wrapped__"):
        EngineCore.post_step = _fetching_drafts(EngineCore.post_step)


def _fetching_drafts(post_step: Any) -> Any:
    """Leave out the call to the worker for drafts that it was told not to make."""

    @functools.wraps(post_step)
    def fetch(core: Any, model_executed: bool) -> None:
        if not getattr(core.scheduler, "skips_drafter", False):
            post_step(core, model_executed)

    return fetch


def _set_depths(core: Any, version: int, depths: list[int]) -> list[Any] | None:
    """Apply a depth table from the next step on.

    Returns:
        None, or the arguments of the ConfigError for the caller: an exception would print a traceback here.
    """
    try:
        core.scheduler.set_depths(version, depths)
    except ConfigError as error:
        return list(error.args)
    return None


def _step_stats(core: Any) -> dict[str, Any]:
    stats: dict[str, Any] = core.scheduler.step_stats()
    return stats
