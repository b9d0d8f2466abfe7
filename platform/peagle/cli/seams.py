"""`peagle version --seams`: symbols that a new release of vLLM or Ray may break."""

import sys
from collections import defaultdict
from itertools import chain

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from peagle.engine.patches.patch_table import PATCHES
from peagle.serve.ray_seams import RAY_SEAMS

PIPE_COLUMNS = 240
HEADINGS = ("symbol", "kind", "why", "upstream issue", "read for", "removed when")


def print_seams() -> None:
    """Print each symbol with its purpose and its removal condition, by library."""
    # A pipe has no width, and truncated rows are hard to search.
    screen = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    by_library = defaultdict(list)
    for seam in chain(PATCHES, RAY_SEAMS):
        by_library[seam.symbol.partition(".")[0]].append(seam)
    for library, seams in by_library.items():
        table = Table(title=library, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in HEADINGS:
            table.add_column(heading, overflow="fold")
        for seam in seams:
            row = (seam.symbol, seam.kind, seam.why, seam.issue, ", ".join(seam.versions), seam.removed_when)
            table.add_row(*map(escape, row))
        screen.print(table, highlight=False)
