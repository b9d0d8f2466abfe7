"""Runs a real vLLM engine step by step, so that a test can change something between steps."""

import gc
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peagle.bench.core.workloads import held_out_prompts
from peagle.config import Deployment, load_deployment
from peagle.engine.arguments import engine_arguments, without_server
from peagle.engine.depth.live_depth import read_step_stats_sync, set_depths_sync
from peagle.prompt_file import read_prompt_file
from peagle.router.snapshot import DepthTable, StepStats
from support.paths import DEPLOYMENTS

KV_CACHE_GIB = "1"


def held_out(count: int) -> list[str]:
    """The first held-out prompts; `PEAGLE_TEST_PROMPTS` names another file of them."""
    named = os.environ.get("PEAGLE_TEST_PROMPTS")
    prompts = [each for each in read_prompt_file(Path(named)) if isinstance(each, str)] if named else held_out_prompts()
    assert len(prompts) >= count
    return prompts[:count]


def embedded(**engine: Any) -> Deployment:
    """The embedded deployment with engine arguments changed; `PEAGLE_TEST_DEPLOYMENT` names another file.

    Its depth does not adapt: it drafts `depth_max` at every step, of which a test's own tables verify some.
    """
    deployment = load_deployment(Path(os.environ.get("PEAGLE_TEST_DEPLOYMENT", DEPLOYMENTS / "embedded.yaml")))
    static = deployment.speculation.model_copy(update={"adaptive": False})
    return deployment.model_copy(update={"engine": {**deployment.engine, **engine}, "speculation": static})


class Runner:
    """One engine. Every `generate` may watch its steps; depth tables are numbered as they are sent."""

    def __init__(self, deployment: Deployment, **options: Any) -> None:
        with warnings.catch_warnings():
            # Warnings of vLLM and torch during import and start do not concern this project.
            warnings.simplefilter("ignore")
            from vllm import LLM

            self.llm: Any = LLM(**without_server(engine_arguments(deployment, **options)))
        self.engine: Any = self.llm.llm_engine
        self.version = 0
        self._requests = 0

    def close(self) -> None:
        """End the engine's process and release it here."""
        self.engine.engine_core.shutdown()
        del self.llm, self.engine
        gc.collect()

    def set_depths(self, *depths: int, by_request: bool = False) -> None:
        self.version += 1
        set_depths_sync(self.llm, DepthTable(self.version, depths, by_request))

    def stats(self) -> StepStats:
        return read_step_stats_sync(self.llm)

    def counters(self) -> dict[str, int]:
        """vLLM's own counters by name, without their prefix."""
        return {
            metric.name.removeprefix("vllm:"): metric.value
            for metric in self.llm.get_metrics()
            if isinstance(getattr(metric, "value", None), int)
        }

    def generate(
        self,
        prompts: Sequence[str],
        batch_size: int,
        on_step: Callable[[list[str]], None] | None = None,
        by_turns: Sequence[Mapping[str, Any]] = ({},),
        **sampling: Any,
    ) -> list[Any]:
        """The outputs, in the order of the prompts, with at most `batch_size` requests in flight.

        `sampling` holds for all of them, and `by_turns` for one after another.
        `on_step` gets the ids of the requests in flight after every step; a request that it aborts has output None.
        """
        from vllm import SamplingParams

        params = [SamplingParams(**{"temperature": 0.0, **sampling, **own}) for own in by_turns]
        waiting, index_of, outputs = list(enumerate(prompts)), {}, [None] * len(prompts)
        while waiting or self.engine.has_unfinished_requests():
            while waiting and len(index_of) < batch_size:
                index, prompt = waiting.pop(0)
                self._requests += 1
                index_of[str(self._requests)] = index
                self.engine.add_request(str(self._requests), prompt, params[index % len(params)])
            for output in self.engine.step():
                if output.finished:
                    outputs[index_of.pop(output.request_id)] = output.outputs[0]
            if on_step is not None:
                on_step(list(index_of))
                if not self.engine.has_unfinished_requests():
                    index_of.clear()
        return outputs

    def restless(self, seed: int) -> Callable[[list[str]], None]:
        """An `on_step` that sends another random depth table every few steps."""
        rng, depth_max, largest = random.Random(seed), self.stats().depth_max, 8

        def change(_: list[str]) -> None:
            if rng.random() < 0.4:
                depths = (rng.randint(0, depth_max) for _ in range(rng.randint(1, largest + 1)))
                self.set_depths(*depths, by_request=rng.random() < 0.5)

        return change


@contextmanager
def running(deployment: Deployment, **options: Any) -> Iterator[Runner]:
    """An engine while the block runs, with options of `engine_arguments`. Its process is gone afterwards."""
    before = os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
    runner = None
    try:
        runner = Runner(deployment, **options)
        yield runner
    finally:
        if runner is not None:
            runner.close()
        if before is None:
            del os.environ["VLLM_CPU_KVCACHE_SPACE"]
        else:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = before
