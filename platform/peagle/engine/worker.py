"""What peagle changes in the processes that hold the model: what is drafted from, how drafts and seeded requests are
sampled, how drafts reach the scheduler, and that what was compiled once is found again.

`WorkerExtension` is the value of vLLM's `worker_extension_cls`. Each worker process looks the class up before it builds
its worker, and so imports this module; the import does the work, and no other process pays for it.
"""

import logging

from vllm import __version__ as vllm_version

from peagle.engine.patches import (
    compile_cache,
    cpu_draft_inputs,
    cpu_sampling,
    markov_drafts,
    seeded_sampling,
    step_drafts,
)
from peagle.engine.plugin import KNOWN_TEXT, is_known

_LOG = logging.getLogger(__name__)


class WorkerExtension:
    """Adds nothing to the worker itself."""


def _install() -> None:
    if is_known(vllm_version):
        compile_cache.install()
        cpu_draft_inputs.install()
        cpu_sampling.install()
        markov_drafts.install()
        seeded_sampling.install()
        step_drafts.install()
    else:
        _LOG.warning("Seeds are vLLM %s's own and depend on depth and load: peagle's know %s", vllm_version, KNOWN_TEXT)


_install()
