"""Grammars that real xgrammar compiles on trial, in a real process: which pass, and which are stopped."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from peagle.engine.grammars.trials import SLOW_NICENESS, SLOW_PLACES, Grammar, Trials
from peagle.errors import OverloadedError
from support.waiting import soon, until

TIMEOUT_S = 1.0
USUAL = Grammar("json", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))
SLOW_TEXT = "(" + "|".join(f"[a-z]{{{number}}}x" for number in range(1, 2000)) + ")*"
SLOW = Grammar("regex", SLOW_TEXT)


@pytest.fixture(scope="module")
def tokenizer_info() -> str:
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*map(chr, range(32, 127)), *(f"{a}{b}" for a in map(chr, range(97, 123)) for b in "aeiou"), "</s>"]
    info: str = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1]).serialize_json()
    return info


@contextmanager
def running(tokenizer_info: str, timeout_s: float = TIMEOUT_S, memory_bytes: int = 2**30) -> Iterator[Trials]:
    trials = Trials(tokenizer_info, timeout_s, memory_bytes, 0.05, any_whitespace=True)
    trials.start()
    try:
        yield trials
    finally:
        trials.close()
    assert processes() == []


@pytest.fixture
async def trials(tokenizer_info: str) -> AsyncIterator[Trials]:
    with running(tokenizer_info) as started:
        assert await started.refusal(Grammar("regex", "a")) is None  # its process is running
        yield started


def processes() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if child.status() != psutil.STATUS_ZOMBIE and "trial_process" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def until_left(count: int) -> None:
    await until(lambda: len(processes()) == count)


STRUCTURE = {"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}


@pytest.mark.parametrize(
    "grammar",
    [
        USUAL,
        Grammar("regex", "[0-9]{3}"),
        Grammar("grammar", 'root ::= "a" | "b"'),
        Grammar("structural_tag", json.dumps({"structures": [STRUCTURE], "triggers": ["<f>"]})),
        Grammar("regex", "((("),
        Grammar("json", "no schema"),
    ],
    ids=["schema", "pattern", "rules", "tag", "no pattern", "no schema"],
)
async def test_grammars_that_compile_or_fail_quickly_pass(trials: Trials, grammar: Grammar) -> None:
    assert await trials.refusal(grammar) is None
    await until_left(1)


async def test_a_slow_grammar_is_stopped_and_refused_at_once_the_second_time(trials: Trials) -> None:
    numbers = itertools.count()

    def tried() -> Grammar:
        return Grammar("regex", f"{SLOW_TEXT}{next(numbers)}")

    refusal = await soon(lambda: trials.refusal(tried()), within_s=TIMEOUT_S + 2)
    assert refusal is not None
    assert "took longer than 1 s" in refusal
    assert "api.grammar.compile_timeout_s" in refusal
    await until_left(1)
    known = Grammar("regex", f"{SLOW_TEXT}0")
    assert await soon(lambda: trials.refusal(known), within_s=TIMEOUT_S / 2) == refusal


CHAIN = "\n".join(("root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}?" for i in range(128)), "r128 ::= [a-z]*"))


async def test_a_grammar_with_slow_tokens_is_refused(tokenizer_info: str) -> None:
    with running(tokenizer_info, timeout_s=30.0) as trials:
        refusal = await trials.refusal(Grammar("grammar", CHAIN))
    assert refusal is not None
    assert "more than 50 ms to follow for one token" in refusal
    assert "api.grammar.max_mask_s" in refusal


async def test_a_grammar_that_fails_after_its_trial_is_refused_the_second_time(trials: Trials) -> None:
    grammar = Grammar("regex", "[0-9]{4}")
    assert await trials.refusal(grammar) is None
    trials.refuse(grammar, "It became slow.")
    assert await trials.refusal(grammar) == "It became slow."
    assert await trials.refusal(Grammar("regex", "[0-9]{5}")) is None


async def test_a_grammar_that_takes_too_much_memory_is_stopped(tokenizer_info: str) -> None:
    with running(tokenizer_info, timeout_s=30.0, memory_bytes=2**20) as trials:
        refusal = await trials.refusal(SLOW)
    assert refusal is not None
    assert "took more than 1048576 bytes" in refusal
    assert "api.grammar.compile_memory_bytes" in refusal


async def test_slow_grammars_leave_places_and_cores_to_quick_ones(tokenizer_info: str) -> None:
    with running(tokenizer_info, timeout_s=8.0) as trials:
        slow = [asyncio.create_task(trials.refusal(Grammar("regex", f"{SLOW_TEXT}{n}"))) for n in range(SLOW_PLACES)]
        await until(lambda: [process.nice() for process in processes()].count(SLOW_NICENESS) == SLOW_PLACES)
        assert await trials.refusal(USUAL) is None
        with pytest.raises(OverloadedError):
            await trials.refusal(SLOW)
        assert not any(task.done() for task in slow)
        assert all(await asyncio.gather(*slow))


async def test_a_request_that_is_given_up_ends_its_trial(tokenizer_info: str) -> None:
    with running(tokenizer_info, timeout_s=60.0) as trials:
        assert await trials.refusal(USUAL) is None
        asked = asyncio.create_task(trials.refusal(SLOW))
        await until_left(2)
        await asyncio.sleep(0.3)
        asked.cancel()
        await until_left(1)
        assert await trials.refusal(Grammar("regex", "ab")) is None


async def test_a_killed_process_is_restarted(trials: Trials) -> None:
    assert await trials.refusal(USUAL) is None
    for process in processes():
        process.kill()
        process.wait()
    assert await trials.refusal(Grammar("regex", "ab")) is None
