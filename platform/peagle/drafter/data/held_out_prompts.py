"""Prompts from held-out source: each ends with the colon after which a function's body begins.

The line's end is left to the model: a token holds a line's end with the indentation that follows it, so a prompt that
ended with the one alone would say that the next line has none.
"""

import re

import numpy as np

from peagle.drafter.data.corpus import Corpus
from peagle.errors import ConfigError

_DEFINITION = re.compile(r"^\s*(async )?def \w+\(.*\).*:\s*$")


def held_out_prompts(corpus: Corpus, count: int, context_lines: int = 14, seed: int = 3) -> list[str]:
    """Pick `count` function heads with the lines before them, spread evenly over the held-out files.

    Raises ConfigError where the held-out files hold fewer than `count` such places.
    """
    draw = np.random.default_rng(seed)
    by_file = []
    for text in corpus.held_out:
        lines = text.splitlines(keepends=True)
        ends = [at + 1 for at, line in enumerate(lines) if at >= context_lines and _DEFINITION.match(line)]
        by_file.append(["".join(lines[end - context_lines : end]).rstrip() for end in draw.permutation(ends)])
    prompts: list[str] = []
    for turn in range(max(map(len, by_file))):
        prompts.extend(each[turn] for each in by_file if turn < len(each))
    if len(prompts) < count:
        problem = f"the held-out files hold only {len(prompts)} functions"
        raise ConfigError("--count", count, problem, "Ask for as many at most.")
    return prompts[:count]
