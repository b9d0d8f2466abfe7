"""What one comparison is asked to do."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """`methods` empty means all that the files offer; `min_distinct_share` None means that loops are kept."""

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
