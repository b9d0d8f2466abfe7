"""The way into vLLM's engine core process: which scheduler to build, and which calls it answers.

vLLM resolves `scheduler` by name while it builds an engine core.
Importing this module imports no vllm.
"""

from typing import Any

from peagle.engine.arguments import SETTINGS_KEY
from peagle.engine.grammars.compile_threads import widen
from peagle.engine.patches.patch_table import install_patches
from peagle.engine.versions import is_known, require_known_vllm
from peagle.errors import ConfigError
from peagle.upstream import Process


def scheduler(**arguments: Any) -> Any:
    """Build the scheduler of an engine core; the value of `scheduler_cls`. Takes vLLM's own arguments.

    Raises:
        StartupError: Live depth is asked for and does not know the installed vLLM.
    """
    from vllm import __version__ as version

    widen(arguments["structured_output_manager"])
    config = arguments["vllm_config"]
    overlapped, is_live = config.scheduler_config.async_scheduling, SETTINGS_KEY in config.additional_config
    if is_live:
        require_known_vllm()
    elif config.speculative_config is None or not is_known(version):
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        return (AsyncScheduler if overlapped else Scheduler)(**arguments)
    install_patches(Process.CORE)
    if not is_live:
        from peagle.engine.depth.depth_bound import AsyncStaticDepthScheduler, StaticDepthScheduler

        return (AsyncStaticDepthScheduler if overlapped else StaticDepthScheduler)(**arguments)
    from peagle.engine.depth.scheduler import AsyncLiveDepthScheduler, LiveDepthScheduler

    return (AsyncLiveDepthScheduler if overlapped else LiveDepthScheduler)(**arguments)


def register() -> None:
    """Let this process's engine cores answer `peagle_set_depths` and `peagle_step_stats`.

    They no longer fetch drafts that came with a step's output. Again, it changes nothing.
    """
    from vllm.v1.engine.core import EngineCore

    from peagle.engine.patches.step_drafts import fetch_only_what_is_missing

    EngineCore.peagle_set_depths = _set_depths
    EngineCore.peagle_step_stats = _step_stats
    if not hasattr(EngineCore.post_step, "__wrapped__"):
        EngineCore.post_step = fetch_only_what_is_missing(EngineCore.post_step)


def _set_depths(core: Any, version: int, depths: list[int], by_request: bool) -> list[Any] | None:
    """Apply a depth table from the next step on.

    Returns:
        None, or the arguments of the ConfigError for the caller: an exception would print a traceback here.
    """
    try:
        core.scheduler.set_depths(version, depths, by_request)
    except ConfigError as error:
        return list(error.args)
    return None


def _step_stats(core: Any, since: int) -> dict[str, Any]:
    stats: dict[str, Any] = core.scheduler.step_stats(since)
    return stats
