"""Entry points into vLLM's engine core process: its scheduler, and the calls that it answers.

vLLM resolves `scheduler` by name when it builds an engine core. Importing this module does not import vllm.
"""

from typing import Any

from peagle.engine.arguments import LIVE_DEPTH, settings_of
from peagle.engine.client_mistakes import in_vllm, shorten_vllm
from peagle.engine.grammars.compile_threads import widen
from peagle.engine.patches.patch_table import install_patches
from peagle.engine.versions import is_known, require_known_vllm
from peagle.errors import ConfigError
from peagle.host.processes import end_after_parent
from peagle.upstream import Process


def scheduler(**arguments: Any) -> Any:
    """Build the scheduler of an engine core, as the value of `scheduler_cls`. Takes vLLM's arguments.

    Raises StartupError if live depth is configured but does not support the installed vLLM.
    """
    from vllm import __version__ as version
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    shorten_vllm(in_vllm)
    widen(arguments["structured_output_manager"])
    config = arguments["vllm_config"]
    overlapped = config.scheduler_config.async_scheduling
    if LIVE_DEPTH in settings_of(config):
        require_known_vllm()
    elif not is_known(version):
        return (AsyncScheduler if overlapped else Scheduler)(**arguments)
    from peagle.engine.grammars.watched_grammars import GrammarWatchingScheduler
    from peagle.engine.shared_steps import AsyncSharingScheduler, SharingScheduler

    drafts = _drafting_scheduler(config) if config.speculative_config is not None else None
    kind = drafts or (AsyncScheduler if overlapped else Scheduler)
    sharing = AsyncSharingScheduler if overlapped else SharingScheduler
    return type(kind.__name__, (GrammarWatchingScheduler, sharing, kind), {})(**arguments)


def _drafting_scheduler(config: Any) -> Any:
    """Return the scheduler class for live or fixed depth."""
    install_patches(Process.CORE)
    overlapped = config.scheduler_config.async_scheduling
    if LIVE_DEPTH not in settings_of(config):
        from peagle.engine.depth.depth_bound import AsyncStaticDepthScheduler, StaticDepthScheduler

        return AsyncStaticDepthScheduler if overlapped else StaticDepthScheduler
    from peagle.engine.depth.overlapped_scheduler import AsyncLiveDepthScheduler
    from peagle.engine.depth.scheduler import LiveDepthScheduler

    return AsyncLiveDepthScheduler if overlapped else LiveDepthScheduler


def register() -> None:
    """Make this process's engine cores answer `peagle_set_depths` and `peagle_step_stats`. Idempotent.

    They also stop fetching drafts that came with a step's output, and end when the process that started them has ended,
    which a core that waits for work would not notice.
    """
    from vllm.v1.engine.core import EngineCore

    from peagle.engine.patches.step_drafts import fetch_only_what_is_missing

    EngineCore.peagle_set_depths = _set_depths
    EngineCore.peagle_step_stats = _step_stats
    if not hasattr(EngineCore.post_step, "__wrapped__"):
        end_after_parent()
        EngineCore.post_step = fetch_only_what_is_missing(EngineCore.post_step)


def _set_depths(core: Any, version: int, depths: list[int], by_request: bool) -> list[Any] | None:
    """Apply a depth table from the next step on.

    Returns:
        None, or the ConfigError's arguments for the caller: an exception would print a traceback here.
    """
    try:
        core.scheduler.set_depths(version, depths, by_request)
    except ConfigError as error:
        return list(error.args)
    return None


def _step_stats(core: Any, since: int) -> dict[str, Any]:
    stats: dict[str, Any] = core.scheduler.step_stats(since)
    return stats
