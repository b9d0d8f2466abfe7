"""Random sums of steps, in the form of an engine's reports."""

from hypothesis import strategies as st

from peagle.router.snapshot import StepCell

DEPTH_MAX = 7


@st.composite
def cells(draw: st.DrawFn) -> StepCell:
    depth = draw(st.integers(0, DEPTH_MAX))
    drafts = draw(st.integers(0, 400))
    accepted, before = [], drafts
    for _ in range(depth):
        before = draw(st.integers(0, before))
        accepted.append(before)
    tail, matched = [], []
    reached = draw(st.integers(0, before))
    for _ in range(DEPTH_MAX - depth):
        right = draw(st.integers(0, reached))
        tail.append(reached)
        reached = right
        matched.append(right)
    none = [0] * (DEPTH_MAX - depth)
    return StepCell(
        batch_size=draw(st.integers(1, 64)),
        depth=depth,
        steps=draw(st.integers(1, 200)),
        seconds=draw(st.floats(1e-4, 30.0)),
        tokens=draw(st.integers(0, 5000)),
        drafts=drafts if depth else 0,
        drafted=tuple([drafts] * depth + none),
        accepted=tuple(accepted + none),
        tail_reached=tuple([0] * depth + tail),
        tail_matched=tuple([0] * depth + matched),
    )
