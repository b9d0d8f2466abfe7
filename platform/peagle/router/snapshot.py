"""What a replica knows about itself, as frozen values with units in their names."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeVar

from peagle.router.row_counts import NO_ROWS, RowCounts

# Share of the drafts that a K asks for, with fewer of which its steps are shallower ones.
_DEPTH_REACHED = 0.9

Count = TypeVar("Count", int, float)


@dataclass(frozen=True, slots=True)
class DepthTable:
    """K for each batch size: `depths[b]` applies to a step with b scheduled requests; the last entry to any above.

    With `by_request` it is K on average: the step's drafts, K for each request in all, go to those likeliest to be
    right. Else each request has K.
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
    verified in these steps. `tail_reached[j]` counts those that were drafted but cut before verification and whose
    positions before all equalled what the target emitted there; `tail_matched[j]` how many of these equalled it, too.

    Some drafts are shorter than K, where a grammar allows no more of one or a request has no more room: `whole[j]`
    counts those of exactly j+1 tokens that were all right, of which nothing is known beyond; empty if there were none
    shorter than K.

    `equal_right[k]` and `shared_right[k]` sum over some of the steps how many drafts were expected to be right with
    K = k+1 for each request, and with as many drafts in all given to the likeliest; empty where that is not known.

    `ended` sums over the steps how many of their requests had ended by the time that the output came: where the next
    step is scheduled before the last one's output is known, these are computed and get nothing. `rested` sums how many
    of the others drafted no more, because steps had run without the drafter. `spared` sums by how many tokens clients'
    own bounds lie below K.
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
        """Requests that got tokens of their own, at least one each, summed over the steps."""
        return self.steps * self.batch_size - self.ended

    @property
    def reached(self) -> bool:
        """Whether as many drafts were verified as its K asks for; else it is no measurement of that K."""
        return sum(self.drafted) >= _DEPTH_REACHED * self.sequences * self.depth


@dataclass(frozen=True, slots=True)
class StepTime:
    """Decode-only steps of one batch size and one K that were timed before the engine took requests."""

    batch_size: int
    depth: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PromptCell:
    """Steps that computed prompt tokens, summed since the engine started.

    One cell is of the steps with or without the drafter, in which others decoded beside the prompts or none did.
    `seconds` are whole steps', so they hold what was decoded: `decoded` sequences, and `verified` draft tokens of
    theirs.
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
    """What an engine did with prompts, and how many tokens the requests that ended computed and got."""

    cells: tuple[PromptCell, ...] = ()
    ended_prompt_tokens: int = 0
    ended_output_tokens: int = 0

    def since(self, earlier: "PromptStats") -> "PromptStats":
        """What was added after `earlier`."""
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
    """All cells of one engine, with the table that it applies now.

    `steps_by_graph` counts decode steps since the engine's start by what they ran as: `full`, `piecewise` or `none`; it
    is empty without a GPU.
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
        """Draft tokens that were verified."""
        return sum(sum(cell.drafted) for cell in self.cells)

    @property
    def accepted(self) -> int:
        return sum(sum(cell.accepted) for cell in self.cells)

    @property
    def requested(self) -> int:
        """Draft tokens that would have been verified, had each of the `drafting_steps` had a draft as deep as asked."""
        return sum(cell.depth * (cell.sequences - cell.rested) - cell.spared for cell in self.cells)

    @property
    def drafting_steps(self) -> int:
        """Requests that were asked for a draft, summed over steps: those at K > 0, without the ones that rested."""
        return sum(cell.sequences - cell.rested for cell in self.cells if cell.depth)

    @property
    def drafted_by_position(self) -> tuple[int, ...]:
        return tuple(sum(cell.drafted[j] for cell in self.cells) for j in range(self.depth_max))

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        return tuple(sum(cell.accepted[j] for cell in self.cells) for j in range(self.depth_max))

    @property
    def steps_by_depth(self) -> dict[int, int]:
        """Decode-only steps at each K asked for."""
        steps: dict[int, int] = {}
        for cell in self.cells:
            steps[cell.depth] = steps.get(cell.depth, 0) + cell.steps
        return steps

    @property
    def depth_effective(self) -> float | None:
        """Draft tokens verified per draft; None before the first."""
        return self.drafted / self.drafts if self.drafts else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that the target emits for each verified draft, its own one included; None before the first."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    def since(self, earlier: "StepStats") -> "StepStats":
        """What was added after `earlier`, an older reading of the same engine; cells without a new count are left out.

        A tail's matches count when later tokens settle them, so a cell can gain those without a new step.
        """
        before = {(cell.batch_size, cell.depth): cell for cell in earlier.cells}
        changed = [
            cell if then is None else _minus(cell, then)
            for cell in self.cells
            # Most are as they were, often the very same: to see that costs a tenth of taking one from the other.
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
    """What an engine added to its sums since the last report that was answered.

    Attributes:
        added: Counts of that time, and the table that the engine applies now.
        reading: Number of the reading that this report ends with, from 1; 0 where readings are not numbered.
        since: Number of the one that it begins after, the last whose report was answered; 0 for the first one's begin.
        untried: While the engine applies a trial, the depths without it, so that a Router that was lost and comes back
            does not take the trial for its plan; else None.
        calibration: What was timed before the first request; told in each report, so that a Router that was lost and
            comes back has it.
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
    """Whether a replica takes new requests: a draining one finishes what it has, a dead one is gone.

    The engine of a stalled one gives no sign of life; it may come back.
    """

    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class RequestRates:
    """Output tokens/s that one request gets: known at a few `batch_sizes`, which rise; nowhere before any is known.

    Between two of them the seconds for one token follow a line, as an engine's step time does (see
    `peagle.router.rates`); beyond the first and the last, that one holds.
    """

    batch_sizes: tuple[int, ...] = ()
    tokens_per_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, tokens_per_s: Mapping[int, float]) -> Self:
        """Rates by batch size."""
        sizes = tuple(sorted(tokens_per_s))
        return cls(sizes, tuple(tokens_per_s[size] for size in sizes))

    def at(self, batch_size: int) -> float:
        """The rate at `batch_size`; at least one has to be known."""
        sizes, rates = self.batch_sizes, self.tokens_per_s
        above = bisect_left(sizes, batch_size)
        if above in (0, len(sizes)):
            return rates[min(above, len(sizes) - 1)]
        before_s, after_s = 1.0 / rates[above - 1], 1.0 / rates[above]
        share = (batch_size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return 1.0 / (before_s + share * (after_s - before_s))


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How deep a replica drafts, and how likely the first j + 1 drafts of its usual request are all right, at j."""

    table: DepthTable
    survival: tuple[float, ...]

    def depth_at(self, batch_size: int) -> int:
        return self.table.depth_at(batch_size)


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """What a dispatcher weighs of one replica, as of `taken_at_s`.

    Attributes:
        replica_id: The name under which requests are sent there.
        taken_at_s: When this was true, on the reader's own clock: whoever receives a report knows its age, and every
            hop adds its own, so that clocks of different machines are never compared.
        state: Whether it takes new requests.
        running_requests: Requests in the engine's batch.
        waiting_requests: Requests in the engine's queue, which have no place in the batch yet.
        queued_prompt_tokens: Prompt tokens of both that are still to be prefilled.
        max_running_requests: Places in the batch.
        max_ongoing_requests: Running and waiting requests that it may hold together.
        kv_usage_ratio: Share of the KV cache that running requests hold, 0 to 1.
        kv_capacity_tokens: Tokens that the whole KV cache holds; 0 where that is not known.
        prefill_tokens_per_s: Prompt tokens prefilled each second while there are any; 0 before it is known.
        request_tokens_per_s: Output tokens each second that one request gets, under the depth plan that the replica
            applies now.
        rate_steps: How many recent steps `request_tokens_per_s` rests on: older ones count less, see
            `peagle.router.rates`.
        rate_prefills: The same of `prefill_tokens_per_s`, in requests.
        output_tokens_mean: Output tokens of its usual request; 0 before it is known.
        drafts: What it drafts; None where no plan is.
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
        """Whether a time to finish can be predicted here."""
        return self.prefill_tokens_per_s > 0 and bool(self.request_tokens_per_s.batch_sizes)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a dispatcher weighs of one request.

    Attributes:
        request_id: Unique among the requests that are open.
        prompt_tokens: Length of the prompt.
        output_tokens: Expected length of the answer, not its bound: a client's `max_tokens` is usually far above it.
        affinity_key: Requests with the same key share their prompt's beginning, so that one replica should have them;
            None for one that shares nothing.
        prefix_tokens: Prompt tokens shared with earlier requests of this key.
        tried: Replicas that have failed this request already.
        kinds: Under what earlier requests like it are known, the nearest first: its system prompt, its client.
        right_ratio: How often a draft of it is expected to be right where those before it were; None if unknown.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    affinity_key: int | None = None
    prefix_tokens: int = 0
    tried: frozenset[str] = frozenset()
    kinds: tuple[int, ...] = ()
    right_ratio: float | None = None
