"""A replica's data about itself, as frozen values with units in their names."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeVar

from peagle.router.row_counts import NO_ROWS, RowCounts

# Share of the drafts asked for by K below which a step does not count as a measurement of that K.
_DEPTH_REACHED = 0.9

Count = TypeVar("Count", int, float)


@dataclass(frozen=True, slots=True)
class DepthTable:
    """K for each batch size: `depths[b]` applies to a step of b scheduled requests; the last entry to larger ones.

    With `by_request` K is an average: the step has K drafts per request in all, given to the likeliest ones. Otherwise
    each request has K.
    """

    version: int
    depths: tuple[int, ...]
    by_request: bool = False

    def depth_at(self, batch_size: int) -> int:
        return self.depths[min(batch_size, len(self.depths) - 1)]


@dataclass(frozen=True, slots=True)
class StepCell:
    """Decode-only steps of one batch size and one K, summed since the engine started.

    `depth` is the K asked for. `drafted[j]` and `accepted[j]` count position j+1 (0-based index) over all drafts
    verified in these steps. `tail_reached[j]` counts drafts cut before verification at this position, if all earlier
    positions matched the tokens that the target emitted; `tail_matched[j]` counts those that also match here.

    A draft is shorter than K if a grammar allows no more or the request has no more room. `whole[j]` counts such drafts
    of exactly j+1 tokens that were all accepted, so nothing is known beyond; empty if no draft was shorter than K.

    `equal_right[k]` and `shared_right[k]` are sums of expected accepted drafts over some of the steps: with K = k+1 for
    each request, and with as many drafts given to the likeliest; empty if unknown.

    `ended` sums over the steps the requests that had ended before the output arrived. With asynchronous scheduling the
    next step is scheduled before the last output is known, so these are computed and get no token. `rested` sums the
    other requests that no longer drafted, because steps had run without the drafter. `spared` sums the tokens by which
    clients' own bounds are below K.
    """

    batch_size: int
    depth: int
    steps: int
    seconds: float
    tokens: int
    drafts: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    tail_reached: tuple[int, ...]
    tail_matched: tuple[int, ...]
    rested: int = 0
    ended: int = 0
    spared: int = 0
    whole: tuple[int, ...] = ()
    equal_right: tuple[float, ...] = ()
    shared_right: tuple[float, ...] = ()

    @property
    def sequences(self) -> int:
        """Requests that got at least one token, summed over the steps."""
        return self.steps * self.batch_size - self.ended

    @property
    def reached(self) -> bool:
        """Whether nearly as many drafts were verified as K asks for; otherwise this does not measure that K."""
        return sum(self.drafted) >= _DEPTH_REACHED * self.sequences * self.depth


@dataclass(frozen=True, slots=True)
class StepTime:
    """Timed decode-only steps of one batch size and one K, run before the engine took requests."""

    batch_size: int
    depth: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PromptCell:
    """Steps that computed prompt tokens, summed since the engine started.

    There is one cell for each combination of `drafter`, whether the drafter ran, and `beside`, whether other requests
    decoded in the same steps. `seconds` are of whole steps, so they include the decoding of `decoded` sequences and
    `verified` draft tokens.
    """

    drafter: bool
    beside: bool
    steps: int
    seconds: float
    prompt_tokens: int
    decoded: int
    verified: int


@dataclass(frozen=True, slots=True)
class PromptStats:
    """An engine's steps with prompts, and the tokens computed and generated for ended requests."""

    cells: tuple[PromptCell, ...] = ()
    ended_prompt_tokens: int = 0
    ended_output_tokens: int = 0

    def since(self, earlier: "PromptStats") -> "PromptStats":
        """Return what was added after `earlier`."""
        before = {(cell.drafter, cell.beside): cell for cell in earlier.cells}
        changed = (
            PromptCell(
                cell.drafter,
                cell.beside,
                cell.steps - then.steps,
                cell.seconds - then.seconds,
                cell.prompt_tokens - then.prompt_tokens,
                cell.decoded - then.decoded,
                cell.verified - then.verified,
            )
            if (then := before.get((cell.drafter, cell.beside))) is not None
            else cell
            for cell in self.cells
        )
        return PromptStats(
            tuple(cell for cell in changed if cell.steps),
            self.ended_prompt_tokens - earlier.ended_prompt_tokens,
            self.ended_output_tokens - earlier.ended_output_tokens,
        )


@dataclass(frozen=True, slots=True)
class StepStats:
    """All cells of one engine, with its current table.

    `steps_by_graph` counts decode steps since the engine's start by how they ran: `full`, `piecewise` or `none`; empty
    without a GPU.
    """

    table: DepthTable
    depth_max: int
    cells: tuple[StepCell, ...]
    prompts: PromptStats = PromptStats()
    steps_by_graph: Mapping[str, int] = field(default_factory=dict)
    rows: RowCounts = NO_ROWS

    @property
    def drafts(self) -> int:
        return sum(cell.drafts for cell in self.cells)

    @property
    def drafted(self) -> int:
        """Verified draft tokens."""
        return sum(sum(cell.drafted) for cell in self.cells)

    @property
    def accepted(self) -> int:
        return sum(sum(cell.accepted) for cell in self.cells)

    @property
    def requested(self) -> int:
        """Draft tokens that would have been verified if each of the `drafting_steps` had a draft of the full K."""
        return sum(cell.depth * (cell.sequences - cell.rested) - cell.spared for cell in self.cells)

    @property
    def drafting_steps(self) -> int:
        """Requests that were asked for a draft, summed over steps: those at K > 0, except rested ones."""
        return sum(cell.sequences - cell.rested for cell in self.cells if cell.depth)

    @property
    def drafted_by_position(self) -> tuple[int, ...]:
        return tuple(sum(cell.drafted[j] for cell in self.cells) for j in range(self.depth_max))

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        return tuple(sum(cell.accepted[j] for cell in self.cells) for j in range(self.depth_max))

    @property
    def steps_by_depth(self) -> dict[int, int]:
        """Decode-only steps at each requested K."""
        steps: dict[int, int] = {}
        for cell in self.cells:
            steps[cell.depth] = steps.get(cell.depth, 0) + cell.steps
        return steps

    @property
    def depth_effective(self) -> float | None:
        """Verified draft tokens per draft; None before the first draft."""
        return self.drafted / self.drafts if self.drafts else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that the target emits per verified draft, including its own; None before the first draft."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    def since(self, earlier: "StepStats") -> "StepStats":
        """Return what was added after `earlier`, an older reading of the same engine; omit unchanged cells.

        Tail matches are counted when later tokens settle them, so a cell can gain matches without a new step.
        """
        before = {(cell.batch_size, cell.depth): cell for cell in earlier.cells}
        changed = [
            cell if then is None else _minus(cell, then)
            for cell in self.cells
            # Most cells are unchanged, often the same object: checking this costs a tenth of a subtraction.
            if (then := before.get((cell.batch_size, cell.depth))) is not cell and then != cell
        ]
        return StepStats(
            self.table,
            self.depth_max,
            tuple(cell for cell in changed if cell.steps or any(cell.tail_reached)),
            self.prompts.since(earlier.prompts),
            {graph: steps - earlier.steps_by_graph.get(graph, 0) for graph, steps in self.steps_by_graph.items()},
            self.rows.since(earlier.rows),
        )


@dataclass(frozen=True, slots=True)
class StepReport:
    """What an engine added to its sums since its last acknowledged report.

    Attributes:
        added: Counts since then, and the engine's current table.
        reading: Number of the reading at the end of this report, from 1; 0 if readings are not numbered.
        since: Number of the last acknowledged reading, after which this report begins; 0 for the engine's start.
        untried: During a trial, the depths without it, so that a restarted Router does not mistake the trial for its
            plan; otherwise None.
        calibration: Steps timed before the first request; part of each report, so that a restarted Router has them.
    """

    added: StepStats
    reading: int = 0
    since: int = 0
    untried: tuple[int, ...] | None = None
    calibration: tuple[StepTime, ...] = ()


def _minus(cell: StepCell, before: StepCell) -> StepCell:
    def each(now: tuple[Count, ...], then: tuple[Count, ...]) -> tuple[Count, ...]:
        return tuple(a - b for a, b in zip(now, then, strict=True))

    return StepCell(
        batch_size=cell.batch_size,
        depth=cell.depth,
        steps=cell.steps - before.steps,
        seconds=cell.seconds - before.seconds,
        tokens=cell.tokens - before.tokens,
        drafts=cell.drafts - before.drafts,
        drafted=each(cell.drafted, before.drafted),
        accepted=each(cell.accepted, before.accepted),
        tail_reached=each(cell.tail_reached, before.tail_reached),
        tail_matched=each(cell.tail_matched, before.tail_matched),
        rested=cell.rested - before.rested,
        ended=cell.ended - before.ended,
        spared=cell.spared - before.spared,
        whole=each(cell.whole, before.whole),
        equal_right=each(cell.equal_right, before.equal_right),
        shared_right=each(cell.shared_right, before.shared_right),
    )


class ReplicaState(StrEnum):
    """Whether a replica takes new requests. A draining replica finishes its requests; a dead one is gone.

    The engine of a stalled replica gives no sign of life, but may recover.
    """

    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class RequestRates:
    """Output tokens/s of one request, known at a few ascending `batch_sizes`; empty if unknown.

    Between two of them the seconds per token are linear, as an engine's step time is (see `peagle.router.rates`).
    Beyond the first and the last, the nearest rate applies.
    """

    batch_sizes: tuple[int, ...] = ()
    tokens_per_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, tokens_per_s: Mapping[int, float]) -> Self:
        """Create the rates from a mapping by batch size."""
        sizes = tuple(sorted(tokens_per_s))
        return cls(sizes, tuple(tokens_per_s[size] for size in sizes))

    def at(self, batch_size: int) -> float:
        """Return the rate at `batch_size`; at least one rate has to be known."""
        sizes, rates = self.batch_sizes, self.tokens_per_s
        above = bisect_left(sizes, batch_size)
        if above in (0, len(sizes)):
            return rates[min(above, len(sizes) - 1)]
        before_s, after_s = 1.0 / rates[above - 1], 1.0 / rates[above]
        share = (batch_size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return 1.0 / (before_s + share * (after_s - before_s))


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A replica's depths, and at j the probability that the first j + 1 drafts of a usual request are all accepted."""

    table: DepthTable
    survival: tuple[float, ...]

    def depth_at(self, batch_size: int) -> int:
        return self.table.depth_at(batch_size)


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """What a dispatcher weighs of one replica, as of `taken_at_s`.

    Attributes:
        replica_id: The name under which requests are sent to it.
        taken_at_s: Time of this snapshot on the reader's own clock. Each receiver of a report knows its age and each
            hop adds its own, so clocks of different machines are never compared.
        state: Whether it takes new requests.
        running_requests: Requests in the engine's batch.
        waiting_requests: Requests in the engine's queue, without a place in the batch.
        queued_prompt_tokens: Prompt tokens of both that are still to be prefilled.
        max_running_requests: Places in the batch.
        max_ongoing_requests: Maximum of running and waiting requests together.
        kv_usage_ratio: Share of the KV cache that running requests hold, 0 to 1.
        kv_capacity_tokens: Tokens that the whole KV cache holds; 0 if unknown.
        prefill_tokens_per_s: Prompt tokens prefilled per second of prefill; 0 if unknown.
        request_tokens_per_s: Output tokens per second of one request, under the replica's current depth plan.
        rate_steps: Number of recent steps behind `request_tokens_per_s`; older ones count less, see
            `peagle.router.rates`.
        rate_prefills: Number of recent requests behind `prefill_tokens_per_s`.
        output_tokens_mean: Mean output tokens of its requests; 0 if unknown.
        drafts: Its draft plan; None if unknown.
    """

    replica_id: str
    taken_at_s: float
    state: ReplicaState = ReplicaState.READY
    running_requests: int = 0
    waiting_requests: int = 0
    queued_prompt_tokens: int = 0
    max_running_requests: int = 256
    max_ongoing_requests: int = 256
    kv_usage_ratio: float = 0.0
    kv_capacity_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    request_tokens_per_s: RequestRates = RequestRates()
    rate_steps: float = 0.0
    rate_prefills: float = 0.0
    output_tokens_mean: float = 0.0
    drafts: DraftPlan | None = None

    @property
    def requests(self) -> int:
        return self.running_requests + self.waiting_requests

    @property
    def has_rates(self) -> bool:
        """Whether a finish time can be predicted for this replica."""
        return self.prefill_tokens_per_s > 0 and bool(self.request_tokens_per_s.batch_sizes)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a dispatcher weighs of one request.

    Attributes:
        request_id: Unique among the open requests.
        prompt_tokens: Length of the prompt.
        output_tokens: Expected length of the answer, not its bound: a client's `max_tokens` is usually far larger.
        affinity_key: Requests with the same key share the start of their prompt, so one replica should serve them;
            None for a request that shares nothing.
        prefix_tokens: Prompt tokens shared with earlier requests of this key.
        tried: Replicas that have already failed this request.
        kinds: Kinds of earlier similar requests, the closest first: its system prompt, its client.
        right_ratio: Expected ratio of accepted drafts, given that those before were accepted; None if unknown.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    affinity_key: int | None = None
    prefix_tokens: int = 0
    tried: frozenset[str] = frozenset()
    kinds: tuple[int, ...] = ()
    right_ratio: float | None = None
