"""Draft counts of finished requests in a replica's report."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from peagle.router.dispatch import EndedDrafts
from peagle.router.fairness.step_sharing import Flow
from peagle.serve.replica.draft_usage import count_drafts, tell_drafts
from peagle.serve.replica.drafted_kinds import ENDED_MAX, DraftedKinds
from peagle.serve.routing.route_request import request_kinds

BODY = SimpleNamespace(messages=[{"role": "system", "content": "Write Python."}, {"role": "user", "content": "Sort."}])


async def asked(drafted: DraftedKinds, body: Any, flow: Flow | None, drafts: bool = True) -> None:
    """Call an engine whose only answer had three drafts of four tokens, with five accepted tokens in total."""
    counts = SimpleNamespace(num_draft_tokens=12, histogram=[1, 0, 1, 1, 0]) if drafts else None

    async def generate() -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(outputs=[SimpleNamespace(spec_decode_metrics=counts)])

    async def reply() -> AsyncGenerator[Any, None]:
        async for _ in count_drafts(generate)():
            yield "data: {}"

    drafted.listen(body, flow)
    async for _ in tell_drafts(reply()):
        pass


async def test_a_request_is_told_of_once_under_each_of_its_kinds() -> None:
    drafted = DraftedKinds()
    await asked(drafted, BODY, Flow("ann"))
    assert drafted.take() == tuple(EndedDrafts(kind, 3, 12, 5) for kind in request_kinds(BODY, "ann"))
    assert drafted.take() == ()


async def test_a_request_without_drafts_or_kinds_is_not_told_of() -> None:
    drafted = DraftedKinds()
    await asked(drafted, BODY, None, drafts=False)
    await asked(drafted, None, None)
    assert drafted.take() == ()


async def test_no_more_are_kept_than_the_bound() -> None:
    drafted = DraftedKinds()
    for _ in range(ENDED_MAX + 5):
        await asked(drafted, BODY, None)
    assert len(drafted.take()) == ENDED_MAX
