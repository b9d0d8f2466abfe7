"""`peagle status`: `GET /fleet` as a table."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from peagle.cli.depth_words import depth_line
from peagle.client.running_server import nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import StartupError

Fleet = dict[str, Any]

PLAN_OLD_S = 5.0
"""Age in seconds from which a plan counts as old; plans are confirmed twice a second."""


def run_status(url: str, *, watch: bool, interval_s: float, as_json: bool) -> None:
    """Print the fleet once, or refresh it until Ctrl-C.

    Raises StartupError if no server answers at `url`, or it is not a peagle server.
    """
    base = base_url(url)
    with httpx.Client(base_url=base, timeout=10.0, trust_env=heeds_proxies(base)) as client:
        before = read_fleet(client)
        if as_json:
            print(json.dumps(before, indent=2))
            return
        # A pipe has no width, and rows truncated at 80 columns are hard to read and search.
        console = Console(width=None if sys.stdout.isatty() else 120)
        if not watch:
            time.sleep(interval_s)
            console.print(fleet_view(before, read_fleet(client), interval_s))
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                now = read_fleet(client)
                live.update(fleet_view(before, now, interval_s), refresh=True)
                before = now


def read_fleet(client: httpx.Client) -> Fleet:
    try:
        response = client.get("/fleet")
        response.raise_for_status()
        fleet: Fleet = response.json()
        fleet["models"]
    except httpx.TransportError as error:
        raise nothing_answers(str(client.base_url).rstrip("/"), error) from None
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        base = str(client.base_url).rstrip("/")
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.FORBIDDEN:
            raise StartupError(f"{base} shows its fleet only locally", "Run the command on its machine.") from None
        raise StartupError(f"{base} is not a peagle server", "Name a peagle server with --url.") from None
    return fleet


def fleet_view(before: Fleet, now: Fleet, seconds: float) -> Group:
    """Return the table of `fleet_table`, and below it the reasons for each replica's K."""
    told = ((key[1], depth_line(replica)) for key, _, replica in _replicas(now))
    return Group(fleet_table(before, now, seconds), *(Text(f"{name}: {line}") for name, line in told if line))


def fleet_table(before: Fleet, now: Fleet, seconds: float) -> Table:
    """Return a table of `now`; speed is what each replica generated since `before`, `seconds` earlier."""
    generated_before = {key: replica.get("generation_tokens") for key, _, replica in _replicas(before)}
    table = Table(caption="K: requested / effective · AL: tokens per verification step · speed over the last interval")
    for heading in ("model", "replica", "state"):
        table.add_column(heading, overflow="fold")
    for heading in ("K", "AL", "running", "waiting", "KV", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, model, replica in _replicas(now):
        earlier, later = generated_before.get(key), replica.get("generation_tokens")
        speed = None
        # A restarted replica counts from zero.
        if earlier is not None and later is not None and later >= earlier:
            speed = (later - earlier) / seconds
        table.add_row(
            model["name"],
            key[1],
            str(replica.get("state", "?")).lower(),
            _depths(replica),
            _number(replica.get("acceptance_length"), "{:.2f}"),
            _number(replica.get("running_requests"), "{:d}"),
            _number(replica.get("waiting_requests"), "{:d}"),
            _number(replica.get("kv_usage_ratio"), "{:.0%}"),
            _number(speed, "{:.0f}"),
        )
    return table


def _replicas(fleet: Fleet) -> Iterator[tuple[tuple[str, str], dict[str, Any], dict[str, Any]]]:
    for model in fleet["models"]:
        for replica in model["replicas"] or [{"id": "-", "state": "no replica"}]:
            yield (model["name"], str(replica["id"])), model, replica


def _depths(replica: dict[str, Any]) -> str:
    """Return `7 / 6.8`, or `7..2 / 4.1 adaptive` if the Router chooses; a dash without drafts."""
    depths = replica.get("depths") or []
    if not depths:
        return "-"
    asked = str(depths[0]) if min(depths) == max(depths) else f"{max(depths)}..{min(depths)}"
    mode = replica.get("depth_mode", "static")
    chosen = "" if mode == "static" else f" {mode}"
    # A plan that is no longer confirmed stays in force, but does not follow the load.
    age_s = replica.get("plan_age_s")
    alone = f", no Router for {age_s:.0f} s" if age_s is not None and age_s > PLAN_OLD_S else ""
    return f"{asked} / {_number(replica.get('depth_effective'), '{:.1f}')}{chosen}{alone}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
