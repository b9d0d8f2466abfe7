"""Requests avoid draining nodes."""

import threading
from dataclasses import dataclass

from peagle.serve.routing.draining import DrainingNodes, staying
from support.waiting import PATIENCE_S, eventually


@dataclass(frozen=True)
class Placed:
    node_id: str


A, B, C = Placed("a"), Placed("b"), Placed("c")


def test_replicas_on_draining_nodes_get_nothing_while_there_are_others() -> None:
    assert staying([A, B, C], {"b"}) == [A, C]
    assert staying([A, B, C], frozenset()) == [A, B, C]


def test_the_last_replicas_go_on_although_their_nodes_drain() -> None:
    assert staying([A, B], {"a", "b"}) == [A, B]
    assert staying([], {"a"}) == []


def test_the_last_answer_holds_while_nobody_answers() -> None:
    answers = iter([{"a"}, OSError("gone"), {"a", "b"}])
    read = threading.Semaphore(0)

    def ask() -> set[str]:
        answer = next(answers, {"b"})
        read.release()
        if isinstance(answer, OSError):
            raise answer
        return answer

    nodes = DrainingNodes(ask, lambda: True, period_s=0.02)
    assert read.acquire(timeout=PATIENCE_S)
    assert read.acquire(timeout=PATIENCE_S)
    # The third read shows that the failed second one was handled.
    assert read.acquire(timeout=PATIENCE_S)
    assert nodes.ids >= {"a"}
    for _ in range(2):
        assert read.acquire(timeout=PATIENCE_S)
    assert nodes.ids == {"b"}


def test_nothing_is_read_once_the_process_has_left_the_cluster() -> None:
    belongs, asked = [True], 0

    def ask() -> set[str]:
        nonlocal asked
        asked += 1
        return {str(asked)}

    before = threading.active_count()
    nodes = DrainingNodes(ask, lambda: belongs[0], period_s=0.01)
    eventually(lambda: asked > 1)
    belongs.clear()
    belongs.append(False)
    eventually(lambda: threading.active_count() == before)
    assert nodes.ids == {str(asked)}
