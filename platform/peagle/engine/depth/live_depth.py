"""Sets the depth table of a running engine and reads its step statistics.

With data parallelism the table reaches every engine; the statistics are those of the first.
"""

from typing import Any

from peagle.errors import ConfigError
from peagle.router.row_counts import RowCounts
from peagle.router.snapshot import DepthTable, PromptCell, PromptStats, StepCell, StepStats

SET_DEPTHS = "peagle_set_depths"
STEP_STATS = "peagle_step_stats"


async def set_depths(engine_client: Any, table: DepthTable) -> None:
    """Apply `table` on an `AsyncLLM` from its next step on.

    Raises:
        ConfigError: The table is refused, or the engine runs without live depth.
    """
    _raise_refusal(await _call(engine_client, SET_DEPTHS, table.version, list(table.depths), table.by_request))


async def read_step_stats(engine_client: Any) -> StepStats:
    """Return the sums of an `AsyncLLM` since it started. For repeated reads use a `StepStatsReader`.

    Raises:
        ConfigError: The engine runs without live depth.
    """
    return await StepStatsReader(engine_client).read()


class StepStatsReader:
    """Reads an `AsyncLLM`'s sums repeatedly; each reading transfers only the changed cells."""

    def __init__(self, engine_client: Any) -> None:
        self._client = engine_client
        self._known = _Known()

    async def read(self) -> StepStats:
        """Return the sums since the engine started.

        Raises:
            ConfigError: The engine runs without live depth.
        """
        return self._known.updated(await _call(self._client, STEP_STATS, self._known.reading))


class _Known:
    """Sums known from an engine's readings so far."""

    def __init__(self) -> None:
        self.reading = 0
        self._cells: dict[tuple[int, int], StepCell] = {}
        self._stats: StepStats | None = None

    def updated(self, plain: dict[str, Any]) -> StepStats:
        """Add a reading sent as lists and numbers; a reading older than the last changes nothing."""
        if self._stats is None or plain["reading"] > self.reading:
            for each in plain["cells"]:
                cell = _step_cell(each)
                self._cells[cell.batch_size, cell.depth] = cell
            self._stats = StepStats(
                table=DepthTable(plain["version"], tuple(plain["depths"]), plain["by_request"]),
                depth_max=plain["depth_max"],
                cells=tuple(self._cells[key] for key in sorted(self._cells)),
                prompts=_prompt_stats(**plain["prompts"]),
                steps_by_graph=plain["graphs"],
                rows=RowCounts(**plain["rows"]),
            )
            self.reading = plain["reading"]
        return self._stats


def set_depths_sync(llm: Any, table: DepthTable) -> None:
    """`set_depths` for a `vllm.LLM`."""
    _raise_refusal(_call_sync(llm, SET_DEPTHS, table.version, list(table.depths), table.by_request))


def read_step_stats_sync(llm: Any) -> StepStats:
    """`read_step_stats` for a `vllm.LLM`."""
    return step_stats_from_plain(_call_sync(llm, STEP_STATS, 0))


def step_stats_from_plain(plain: dict[str, Any]) -> StepStats:
    """Rebuild a complete reading from the lists and numbers that the engine sent."""
    return _Known().updated(plain)


def _step_cell(plain: dict[str, Any]) -> StepCell:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return StepCell(**fields)


def _prompt_stats(cells: list[dict[str, Any]], **ended: int) -> PromptStats:
    return PromptStats(tuple(PromptCell(**cell) for cell in cells), **ended)


async def _call(engine_client: Any, method: str, *arguments: Any) -> Any:
    try:
        return await engine_client.engine_core.call_utility_async(method, *arguments)
    except Exception as error:
        raise _explained(error, method) from None


def _call_sync(llm: Any, method: str, *arguments: Any) -> Any:
    try:
        return llm.llm_engine.engine_core.call_utility(method, *arguments)
    except Exception as error:
        raise _explained(error, method) from None


def _explained(error: Exception, method: str) -> Exception:
    """Explain vLLM's error for a missing engine-core method, which it reports only as text."""
    if "has no attribute" in str(error) and method in str(error):
        return ConfigError(
            "speculation",
            "this engine",
            "it runs without live depth",
            "Serve a deployment with a drafter and speculation.live_depth: true.",
        )
    return error


def _raise_refusal(refusal: list[Any] | None) -> None:
    if refusal is not None:
        raise ConfigError(*refusal)
