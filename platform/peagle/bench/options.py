"""What one comparison is asked to do."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """`methods` empty means all that the files offer; `min_distinct_share` None means that loops are kept.

    With `adaptive`, an engine whose K can change is also measured with the K that the Router's rule chooses.
    """

    methods: tuple[str, ...]
    depths: tuple[int, ...]
    concurrencies: tuple[int, ...]
    prompts: int
    output_tokens: int
    repeats: int
    warmup_sets: int
    min_distinct_share: float | None
    prompts_from: Path | None
    eager: bool
    adaptive: bool = False
