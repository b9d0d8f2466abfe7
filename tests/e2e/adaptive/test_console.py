"""The console in a real browser: its figures, its playground, and its accessibility."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from support.platforms.browser import LOW_CONTRAST, UNNAMED, Watched, chromium, opened
from support.platforms.served import Served
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 360, "height": 740}
POLL_MS = 2000
TOKENS = 48


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def watched(browser: Browser, adaptive: Served) -> Iterator[Watched]:
    with opened(browser, adaptive.url, viewport=DESKTOP) as found:
        expect(found.page.get_by_role("heading", name=adaptive.model)).to_be_visible()
        yield found


def ask(page: Page, depth_max: str = "") -> None:
    """Send a prompt in the playground, and wait for the end of its answer."""
    page.get_by_label("Prompt").fill("def read_lines(path):")
    page.get_by_label("Max tokens").fill(str(TOKENS))
    page.get_by_label("Depth max").fill(depth_max)
    answers = page.locator("#runs tbody tr").count()
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#runs tbody tr")).to_have_count(answers + 1)


def figure(page: Page, label: str) -> str:
    return page.locator("#answer-figures .tile", has_text=label).locator(".value").inner_text()


def test_it_shows_the_model_its_replica_and_why_k_is_what_it_is(watched: Watched, adaptive: Served) -> None:
    page = watched.page
    ask(page)
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator(".states")).to_contain_text("1 running")
    row = page.get_by_role("row", name=re.compile(adaptive.fleet()[0]["id"]))
    expect(row).to_contain_text("ready")
    depths = page.get_by_role("img", name=re.compile("^K by requests at once: "))
    expect(depths).to_have_attribute("aria-label", re.compile(r": \d+ for 1"))
    acceptance = page.get_by_role("img", name=re.compile("^Accepted drafts by position: 1: "))
    expect(acceptance).to_be_visible()
    expect(page.locator(".part", has_text="K by batch size").locator(".hint")).not_to_be_empty()
    # Only a streamed answer has a first token to wait for.
    expect(page.locator(".tile", has_text="TTFT p50").first).to_contain_text("ms, last minute")


def test_it_polls_only_while_it_is_visible(watched: Watched) -> None:
    page = watched.page
    for _ in range(2):
        with page.expect_request("**/console/status"):
            pass
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    tell = "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide + tell, True)
    expect(page.locator("#live")).to_have_text("Paused")
    page.wait_for_timeout(500)
    before = len(watched.requests)
    page.wait_for_timeout(2.5 * POLL_MS)
    assert len(watched.requests) == before
    page.evaluate(hide + tell, False)
    expect(page.locator("#live")).to_have_text("Live")


@pytest.fixture
def pinned(adaptive: Served) -> Iterator[None]:
    """Have every answer drafted, whatever K the steps of a busy machine lead to."""
    url = f"{adaptive.url}/fleet/models/{adaptive.model}/depth"
    httpx.put(url, json={"pin": 7}, timeout=PATIENCE_S).raise_for_status()
    eventually(lambda: [set(row["depths"]) for row in adaptive.fleet()] == [{7}])
    yield
    httpx.delete(url, timeout=PATIENCE_S).raise_for_status()


@pytest.mark.usefixtures("pinned")
def test_the_playground_streams_and_marks_accepted_drafts_as_the_engine_counts_them(watched: Watched) -> None:
    page = watched.page
    ask(page)
    assert int(page.locator("#runs tbody td").first.inner_text()) == TOKENS
    assert 1.0 <= float(figure(page, "Acceptance length")) <= 8.0
    accepted, drafted = map(int, figure(page, "Accepted drafts").split(" of "))
    assert 0 < accepted < drafted
    assert page.locator("#answer .t").count() == TOKENS
    # Steps may arrive merged, and the last one may be cut: the page then says so.
    marked = page.locator("#answer .t.d").count()
    expect(page.locator("#answer-check")).to_contain_text("as marked" if marked == accepted else f"{marked} are marked")
    assert abs(marked - accepted) <= 8
    expect(page.locator("#answer-said")).to_contain_text("acceptance length")
    ask(page, depth_max="0")
    assert figure(page, "Acceptance length") == "\N{EN DASH}"
    expect(page.locator("#answer-check")).to_have_text("Nothing was drafted for this answer.")
    assert page.locator("#answer .t.d").count() == 0


def test_a_long_answer_does_not_block_the_page(watched: Watched) -> None:
    """Laying out the whole answer for each of its events would take longer and longer."""
    page, events = watched.page, 500
    choice = {"index": 0, "delta": {"content": "word word\n"}, "token_ids": [1, 2, 3]}
    body = f"data: {json.dumps({'choices': [choice]})}\n\n" * events + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable")

    def layouts() -> int:
        values = browser.send("Performance.getMetrics")["metrics"]
        return int(next(each["value"] for each in values if each["name"] == "LayoutCount"))

    before = layouts()
    ask(page)
    assert layouts() - before < events / 5
    assert page.locator("#answer .event").count() == events
    script = """async () => {
        for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
        const answer = document.getElementById("answer");
        return answer.scrollHeight - answer.clientHeight - answer.scrollTop;
    }"""
    assert page.evaluate(script) < 1


def test_a_refusal_shows_the_server_s_message_and_an_answer_can_be_stopped(watched: Watched) -> None:
    page = watched.page
    page.get_by_label("Max tokens").fill("100000")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("100000")
    page.get_by_label("Max tokens").fill("900")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer .t").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_it_sends_requests_only_to_its_server_and_logs_no_error(watched: Watched) -> None:
    ask(watched.page)
    watched.page.get_by_role("button", name="API key").click()
    watched.page.wait_for_timeout(POLL_MS)
    assert watched.complaints == []
    assert watched.violations() == []
    assert watched.strays() == []


def test_new_figures_leave_an_unchanged_cell_as_it_is(watched: Watched) -> None:
    """A selection, and the place of a screen reader, would be lost with the cell."""
    page = watched.page
    page.evaluate("window.cell = document.querySelector('section.model tbody th')")
    ask(page)
    for _ in range(2):
        with page.expect_response("**/console/status") as answered:
            pass
        assert answered.value.ok
    page.wait_for_timeout(POLL_MS / 2)
    assert page.evaluate("window.cell.isConnected")


def test_rates_and_quantiles_are_those_of_prometheus_and_survive_a_restart(watched: Watched) -> None:
    """The page's own modules, in the browser that runs them."""
    script = """async () => {
        const { History, minus, quantile } = await import("/console/page/history.js");
        const { runsOf } = await import("/console/page/charts.js");
        const history = new History();
        for (const [at_s, id, generation_tokens] of [[0, "a", 100], [2, "a", 300], [4, "a", 50], [6, "b", 900]])
            history.add({ at_s, models: [{ name: "m", replicas: [{ id, generation_tokens }] }] });
        const setBack = new History();
        for (const [at_s, generation_tokens] of [[1000, 0], [1002, 10], [1001, 5], [500, 20], [502, 30]])
            setBack.add({ at_s, models: [{ name: "m", replicas: [{ id: "a", generation_tokens }] }] });
        return {
            setBack: [setBack.last.at_s, setBack.speeds("m"), setBack.speeds("m", "a")],
            middle: quantile({ bounds: [0.1, 0.2, 0.4], counts: [0, 10, 10, 0] }, 0.75),
            beyond: quantile({ bounds: [0.1, 0.2], counts: [0, 0, 3] }, 0.5),
            nothing: quantile({ bounds: [0.1], counts: [0, 0] }, 0.5),
            grown: minus([5, 1], [3, 4]),
            speeds: history.speeds("m"),
            runs: runsOf([7, 7, 7, 5]).map(({ first, last, depth }) => [first, last, depth]),
        };
    }"""
    assert watched.page.evaluate(script) == {
        # An answer a little older is of another process's clock; one much older means that a clock was set back.
        "setBack": [502, [[0, 5]], [[0, 5]]],
        "middle": pytest.approx(0.3),
        "beyond": 0.2,
        "nothing": None,
        "grown": [2, 1],
        # The second replica's first count is from before it was seen.
        "speeds": [[4, 100], [2, 25], [0, 0]],
        "runs": [[1, 2, 7], [3, 3, 5]],
    }


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("light", DESKTOP, "light"), ("dark", DESKTOP, "dark"), ("phone", PHONE, "light")],
    ids=["light", "dark", "phone"],
)
def test_it_is_accessible_in_both_themes_and_on_a_phone(
    browser: Browser, adaptive: Served, tmp_path: Path, name: str, size: dict[str, int], scheme: str
) -> None:
    with opened(browser, adaptive.url, viewport=size, color_scheme=scheme) as watched:
        page = watched.page
        expect(page.get_by_role("heading", name=adaptive.model)).to_be_visible()
        ask(page)
        page.screenshot(path=tmp_path / f"console-{name}.png", full_page=True)
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_the_keyboard_reaches_every_control_and_the_focus_is_visible(watched: Watched) -> None:
    page = watched.page
    ask(page)
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.locator("h1").click()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "(() => { const at = document.activeElement;"
            " return [at.id || at.className, getComputedStyle(at).outlineStyle]; })()"
        )
        if name in ("", "skip") and reached:
            break
        assert outline != "none", name
        reached.append(name)
    wanted = {"key-toggle", "prompt", "model", "max-tokens", "temperature", "depth-max", "split", "send", "answer"}
    assert wanted <= set(reached)
    page.get_by_label("Prompt").focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#runs tbody tr")).to_have_count(2)
