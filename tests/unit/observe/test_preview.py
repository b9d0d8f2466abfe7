"""Pictures of the dashboards: every panel, with data from a real Prometheus."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import numpy as np
import psutil
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from peagle.api.http_metrics import exposition
from peagle.observe.draw import by_bucket, colour_of, draw, series_colour, shown
from peagle.observe.prometheus import Answer, Line, Span, filled_in, legend
from peagle.observe.provision import prometheus_config, write_grafana, write_prometheus
from peagle.observe.services import Child
from peagle.palette import BAD, INK, WARN
from support.observe.metrics_sample import whole_scrape
from support.observe.prometheus_tools import REPOSITORY, program
from support.platforms.http_server import serving
from support.platforms.served import free_port
from support.waiting import PATIENCE_S, eventually

GENERATED = REPOSITORY / "dashboards" / "generated"
EVERY_S = 15
BEFORE, AFTER = 40, 40  # samples until the test begins, and while it runs
OF_THE_PLATFORM = ("peagle / Overview", "peagle / Speculation", "peagle / Router", "peagle / Engine")
ENGINE_S_OWN = "Requests, as vLLM counts them, Prefill, p95, Decode, p95"


def of_board(name: str) -> list[dict[str, Any]]:
    """The panels of a generated dashboard."""
    found: list[dict[str, Any]] = json.loads((GENERATED / f"{name}.json").read_text(encoding="utf-8"))["panels"]
    return found


def samples(start_s: float) -> str:
    """Return a complete `/metrics` answer every 15 s for twenty minutes, as OpenMetrics, with growing counters."""
    families = list(text_string_to_metric_families(exposition(whole_scrape()).decode()))
    lines = []
    for family in families:
        grows = family.type in ("counter", "histogram")
        for sample in family.samples:
            labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
            lines += [
                f"{sample.name}{{{labels}}} {sample.value * (number if grows else 1)} {start_s + number * EVERY_S}"
                for number in range(1, BEFORE + AFTER + 1)
            ]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus with ten minutes of scrapes of a small fleet."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    text = folder / "samples.txt"
    text.write_text(samples(time.time() - BEFORE * EVERY_S), encoding="utf-8")
    blocks = ["tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "prometheus")]
    subprocess.run([program("promtool"), *blocks], check=True, capture_output=True)
    config = write_prometheus(folder, "http://127.0.0.1:1", [])
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    url = f"http://127.0.0.1:{port}"
    with Child(command, f"{url}/-/ready", folder / "log"):
        yield url


def test_every_panel_is_drawn_from_what_prometheus_answers(prometheus: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "peagle.cli", "dashboards", "preview", "--prometheus", prometheus]
    options = ["--dashboards", str(GENERATED), "--out", str(tmp_path), "--minutes", "10"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    empty = {
        title: line.partition("without data")[2].removeprefix(": ")
        for title, _, line in (line.partition(": ") for line in done.stdout.splitlines())
        if title in OF_THE_PLATFORM
    }
    # vLLM's own series come from Ray's agents, which do not run here.
    assert empty == {**dict.fromkeys(OF_THE_PLATFORM, ""), "peagle / Engine": ENGINE_S_OWN}
    page = (tmp_path / "preview.html").read_text(encoding="utf-8")
    panels = [
        panel
        for path in GENERATED.glob("*.json")
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        if panel["type"] != "row"
    ]
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == len(panels)
    assert all(ElementTree.fromstring(picture) is not None for picture in pictures)
    # No GPU's exporter runs here, and its panels say so.
    assert "scrape NVIDIA&#x27;s exporter" in page or "scrape NVIDIA's exporter" in page
    assert ElementTree.parse(tmp_path / "preview.svg").getroot().tag.endswith("svg")


def test_a_query_that_prometheus_refuses_is_told(prometheus: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from peagle.observe.preview import run_preview

    board = json.loads((GENERATED / "router.json").read_text(encoding="utf-8"))
    board["panels"] = board["panels"][1:2]
    board["panels"][0]["targets"][0]["expr"] = "rate(("
    (tmp_path / "broken.json").write_text(json.dumps(board), encoding="utf-8")
    assert run_preview(prometheus, tmp_path, tmp_path / "out", 10.0, 1.0) == 1


@pytest.fixture
def server() -> Iterator[str]:
    """A server with the platform's `/metrics`."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(whole_scrape()))

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    with serving(app) as url:
        yield url


def until_scraped(api: str) -> set[str]:
    """Wait for the server's series; return the names of the rule groups."""
    asked = {"query": 'peagle_replicas{state="running"}'}
    eventually(lambda: httpx.get(f"{api}/query", params=asked, timeout=PATIENCE_S).json()["data"]["result"])
    return {group["name"] for group in httpx.get(f"{api}/rules", timeout=PATIENCE_S).json()["data"]["groups"]}


def test_observe_scrapes_the_server_loads_the_rules_and_leaves_nothing_behind(server: str) -> None:
    folder, port = str(Path(program("prometheus")).parent), free_port()
    command = [sys.executable, "-m", "peagle.cli", "observe", "--url", server, "--dashboards", str(GENERATED)]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command += ["--prometheus-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            assert f"http://127.0.0.1:{port}" in running.stdout.readline()
            children = psutil.Process(running.pid).children()
            scraped = until_scraped(f"http://127.0.0.1:{port}/api/v1")
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 0
    assert scraped >= {"peagle.recorded", "peagle.serving", "peagle.objectives"}
    assert not any(child.is_running() for child in children)


def test_the_configuration_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    path = write_prometheus(tmp_path, "http://127.0.0.1:8000", sorted(GENERATED.glob("*.yaml")))
    subprocess.run([program("promtool"), "check", "config", str(path)], check=True, capture_output=True)


def test_an_address_of_ipv6_keeps_its_brackets() -> None:
    jobs = prometheus_config("http://[::1]:8123", [])["scrape_configs"]
    assert jobs[0]["static_configs"] == [{"targets": ["[::1]:8123"]}]
    assert jobs[0]["metrics_path"] == "/metrics"


def test_a_server_behind_a_path_is_scraped_there() -> None:
    job = prometheus_config("https://gateway.example/llm/", [])["scrape_configs"][0]
    assert (job["static_configs"], job["metrics_path"]) == ([{"targets": ["gateway.example:443"]}], "/llm/metrics")


def test_a_panel_without_a_number_is_empty() -> None:
    pytest.importorskip("matplotlib")
    from peagle.observe.preview import Drawn

    ratio = Line("of nothing", ((0.0, math.nan), (5.0, math.nan)))
    assert Drawn({}, (Answer((ratio,)),)).is_empty
    assert not Drawn({}, (Answer((ratio, Line("of some", ((0.0, math.nan), (5.0, 0.5))))),)).is_empty


def test_grafana_finds_its_data_source_and_the_dashboards(tmp_path: Path) -> None:
    environment = write_grafana(tmp_path, "http://127.0.0.1:9090", GENERATED)
    provisioned = Path(environment["GF_PATHS_PROVISIONING"])
    (source,) = json.loads((provisioned / "datasources" / "peagle.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = json.loads((provisioned / "dashboards" / "peagle.yaml").read_text())["providers"]
    assert list(Path(provider["options"]["path"]).glob("*.json"))


def test_what_grafana_fills_in_is_filled_in() -> None:
    span = Span(0.0, 600.0, 5.0)
    expr = 'rate(a{model=~"$model"}[$__rate_interval]) * $price'
    assert filled_in(expr, span, {"price": "2"}) == 'rate(a{model=~".*"}[60s]) * 2'
    assert legend("{{model}} p95", {"model": "m"}) == "m p95"
    assert legend("__auto", {"__name__": "a", "x": "1"}) == "x=1"


def test_buckets_are_drawn_alone() -> None:
    lines = [Line("+Inf", ((0.0, 9.0),)), Line("0.5", ((0.0, 7.0),)), Line("0.1", ((0.0, 4.0),))]
    assert [(line.name, line.points[0][1]) for line in by_bucket(lines)] == [("0.1", 4.0), ("0.5", 3.0)]


@pytest.mark.parametrize(("value", "colour"), [(0.9, "green"), (1.0, "orange"), (4.9, "orange"), (9.0, "red")])
def test_a_figure_has_the_colour_of_the_highest_limit_that_it_has_reached(value: float, colour: str) -> None:
    steps = [{"value": None, "color": "green"}, {"value": 1, "color": "orange"}, {"value": 5, "color": "red"}]
    assert colour_of({"fieldConfig": {"defaults": {"thresholds": {"steps": steps}}}}, value) == colour


def test_a_figure_without_limits_has_the_colour_of_text() -> None:
    steps = [{"value": None, "color": "text"}]
    assert colour_of({"fieldConfig": {"defaults": {"thresholds": {"steps": steps}}}}, 1.0) == INK


def test_a_series_has_the_colour_that_its_dashboard_gives_it() -> None:
    (panel,) = [each for each in of_board("overview") if each["title"] == "Requests by outcome"]
    colours = [series_colour(panel, name) for name in ("ok", "m failed", "no-such")]
    assert None not in colours[:2]
    assert colours[2] is None
    assert not {WARN, BAD} & set(colours)


def test_an_empty_panel_says_why() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    (panel,) = [each for each in of_board("router") if each["title"] == "Dispatch by reason"]
    axes = figures.Figure().subplots()
    draw(axes, panel, [Answer()], Span(0.0, 120.0, 5.0))
    assert [text.get_text() for text in axes.texts] == ["One replica: nothing to dispatch."]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "percentunit", "12.3%"),
        (0.0421, "s", "42.1 ms"),
        (2.5, "s", "2.5 s"),
        (12_345, "short", "12.3k"),
        (float("nan"), "short", "-"),
        (1.416, "suffix:x", "1.42x"),
    ],
)
def test_values_are_shown_in_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


@pytest.mark.parametrize("stacked", [False, True])
def test_a_series_of_one_sample_is_to_be_seen(stacked: bool) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    mode = {"stacking": {"mode": "normal"}} if stacked else {}
    panel = {"title": "t", "type": "timeseries", "fieldConfig": {"defaults": {"unit": "s", "custom": mode}}}
    span = Span(0.0, 120.0, 5.0)
    figure = figures.Figure(dpi=50)
    axes = figure.subplots()
    draw(axes, panel, [Answer((Line("", ((120.0, 2.0),)),))], span)
    axes.set_axis_off()
    picture = io.BytesIO()
    figure.savefig(picture, format="rgba")
    pixels = np.frombuffer(picture.getvalue(), np.uint8).reshape(-1, 4)[:, :3].astype(int)
    assert (np.ptp(pixels, axis=1) > 60).sum() >= 4  # in colour, which nothing else is
