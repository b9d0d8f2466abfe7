"""Prompts from held-out source; each ends with the colon before a function's body.

The newline is left to the model: one token holds a newline with the following indentation, so a prompt that ends with a
bare newline would mean that the next line is not indented.
"""

import re

import numpy as np

from peagle.drafter.data.corpus import Corpus
from peagle.errors import ConfigError

_DEFINITION = re.compile(r"^\s*(async )?def \w+\(.*\).*:\s*$")


def held_out_prompts(corpus: Corpus, count: int, context_lines: int = 14, seed: int = 3) -> list[str]:
    """Pick `count` function heads with the lines before them, spread evenly over the held-out files.

    Raises ConfigError if the held-out files hold fewer than `count` functions.
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
        raise ConfigError("--count", count, problem, "Ask for at most that many.")
    return prompts[:count]
