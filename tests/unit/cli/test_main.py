"""The command line: instant help, one-line errors that a user can fix, and output of chat and status."""

import io
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from peagle import __version__
from peagle.cli import main
from peagle.cli.chat import Answer, Piece, acceptance_between, busiest, draft_counts, input_lines, parse_event
from peagle.cli.status import fleet_view, read_fleet
from peagle.client.running_server import choose_model, key_headers
from peagle.client.server_url import heeds_proxies, http_url
from peagle.errors import ConfigError, RequestError, StartupError
from peagle.serve.launch import run
from support.platforms.served import DEPLOYMENT

COMMANDS = (
    "serve",
    "sagemaker",
    "validate",
    "chat",
    "status",
    "drafter",
    "bench",
    "cluster",
    "version",
    "load",
    "observe",
    "dashboards",
)


def peagle(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def test_help_names_every_command() -> None:
    done = peagle("--help")
    assert done.returncode == 0
    assert all(f"  {command} " in done.stdout for command in COMMANDS)


def test_version_prints_what_an_upgrade_may_break_where_it_is_asked_to() -> None:
    plain, seams = peagle("version"), peagle("version", "--seams")
    assert plain.stdout.strip() == __version__
    assert seams.returncode == 0
    for row in ("vllm.v1.engine.core:EngineCore.post_step", "ray._raylet:GcsClient", "vllm/pull/45695", "none filed"):
        assert row in seams.stdout, row


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys; sys.argv = ['peagle', '--help']\n"
        "from peagle.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'ray', 'vllm', 'torch', 'numpy', 'pydantic', 'httpx', 'yaml'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "validate",
        "chat",
        "status",
        "load",
        "observe",
        "dashboards preview",
        "bench speculation",
        "bench depth",
        "bench overhead",
        "bench compare",
        "cluster preflight",
        "cluster status",
        "cluster drain",
    ],
)
def test_every_help_text_has_an_example(command: str) -> None:
    done = CliRunner().invoke(main.app, [*command.split(), "--help"], prog_name="peagle")
    assert done.exit_code == 0
    assert "Example:" in done.stdout
    assert f"peagle {command}" in " ".join(done.stdout.partition("Example:")[2].split())


def test_a_command_group_gets_its_own_options() -> None:
    done = peagle("bench")
    assert done.returncode == 0
    assert "Usage: python -m peagle.cli bench" in done.stdout
    assert "speculation" in done.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bench speculation FOLDER/absent.yaml", r"absent\.yaml"),
        ("bench speculation FOLDER/x.yaml --depths 3,x", "--depths = '3,x'"),
        (f"bench depth {DEPLOYMENT} --depths 0", "--depths = '0': .*Add a larger K"),
        ("bench compare FOLDER FOLDER", "has no result"),
        ("drafter generate FOLDER --out FOLDER/text.npz", "there is no tokenizer"),
        ("drafter prompts --out FOLDER/file/prompts.jsonl", "--out = "),
        *(
            (f"{command} http://127.0.0.1:80a0", "URL = 'http://127.0.0.1:80a0'")
            for command in ("chat --url", "status --url", "load --url", "observe --url")
        ),
        ("dashboards preview --prometheus http://127.0.0.1:80a0", "URL = 'http://127.0.0.1:80a0'"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_2(command: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = peagle(*command.replace("FOLDER", str(tmp_path)).split())
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("peagle: ")
    assert re.search(said, done.stderr)


@pytest.mark.parametrize(
    ("status", "problem"), [(403, "shows its fleet only locally"), (404, "is not a peagle server")]
)
def test_a_server_that_tells_of_no_fleet_is_said_so(status: int, problem: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json={"error": {}}))
    client = httpx.Client(base_url="http://served", transport=transport)
    with client, pytest.raises(StartupError, match=f"http://served .*{problem}"):
        read_fleet(client)


@pytest.mark.parametrize(
    ("answer", "key", "problem"),
    [
        (httpx.Response(401, json={}), None, "requires an API key"),
        (httpx.Response(401, json={}), "k", "refuses the key in PEAGLE_API_KEY"),
        (httpx.Response(200, json={"data": [{"id": "other"}]}), None, "does not serve m.*Available models: other"),
        (httpx.Response(200, json={"data": []}), None, "serves no model"),
        (httpx.Response(200, json=[]), None, "not an OpenAI-compatible server"),
    ],
)
def test_a_server_that_names_no_such_model_is_said_to_and_why(
    answer: httpx.Response, key: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PEAGLE_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("PEAGLE_API_KEY", key)
    answer.request = httpx.Request("GET", "http://served/v1/models")
    with pytest.raises(StartupError, match=problem):
        choose_model(answer, "http://served", "m")


def test_a_model_that_embeds_is_not_the_one_to_talk_to() -> None:
    def served(*models: dict[str, str]) -> httpx.Response:
        return httpx.Response(200, json={"data": list(models)}, request=httpx.Request("GET", "http://served"))

    embeds, writes = {"id": "embeds", "task": "pooling"}, {"id": "writes"}
    assert choose_model(served(embeds, writes), "http://served", None) == "writes"
    with pytest.raises(StartupError, match="serves no model that generates text"):
        choose_model(served(embeds), "http://served", None)


def test_prompts_are_written_into_a_new_folder(tmp_path: Path) -> None:
    done = peagle("drafter", "prompts", "--out", str(tmp_path / "new" / "prompts.jsonl"), "--count", "3")
    assert done.returncode == 0
    assert len((tmp_path / "new" / "prompts.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("command", ["chat", "status"])
def test_no_server_is_one_line_that_says_how_to_start_one(command: str) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    done = peagle(command, "--url", url, stdin="hello\n")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"no server answers at {url}" in done.stderr
    assert "peagle serve" in done.stderr


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:9/", "socks5://127.0.0.1:9/", "http://a:port"])
def test_a_proxy_that_cannot_be_used_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(StartupError, match=r"proxy.* cannot be used.*unset ALL_PROXY"):
        heeds_proxies("http://example.org:8000")
    assert not heeds_proxies("http://127.0.0.1:8000"), "nobody asks a proxy for this machine's own"


def test_a_key_and_a_line_of_any_letters_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_API_KEY", "schlüssel")
    request = httpx.Client(headers=key_headers()).build_request("GET", "http://127.0.0.1")
    assert (b"Authorization", "Bearer schlüssel".encode()) in request.headers.raw
    typed = io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", typed)
    assert list(input_lines(interactive=False)) == ["a\ufffd"]


@pytest.mark.parametrize("text", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://a:99999999", "a\n"])
def test_only_what_can_be_asked_is_an_address(text: str) -> None:
    with pytest.raises(ConfigError):
        http_url(text)


def test_serve_names_a_keys_file_that_is_not_there(tmp_path: Path) -> None:
    done = peagle("serve", "deployments/embedded.yaml", "--keys-file", str(tmp_path / "absent.txt"))
    assert done.returncode == 2
    assert "--keys-file" in done.stderr
    assert "absent.txt" in "".join(done.stderr.split())


@pytest.mark.parametrize("metrics", [True, False])
def test_serve_hands_its_options_on(metrics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.txt").write_text("secret\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {}
    monkeypatch.setattr(run, "run", lambda files, **options: given.update(options) or 0)
    command = ["serve", "x.yaml", "--keys-file", "keys.txt", *([] if metrics else ["--no-metrics"])]
    CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert given["api"]["keys_file"] == str(tmp_path / "keys.txt"), "its whole path"
    assert given["api"]["metrics"] is metrics


def test_validate_checks_every_file_and_fails_if_one_is_wrong(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: remote\ntarget: {source: org/target}\nspeculation: {enabled: false}\n", encoding="utf-8")
    bad.write_text("name: remote\ntarget: {source: org/target}\nspeculatoin: {}\n", encoding="utf-8")
    assert peagle("validate", str(good)).returncode == 0
    done = peagle("validate", str(bad), str(good))
    assert done.returncode == 2
    assert f"{bad}: wrong" in done.stdout
    assert "speculatoin" in done.stdout
    assert f"{good}: ok" in done.stdout


def test_an_event_of_text_and_the_last_event_with_figures_are_read() -> None:
    text = {"choices": [{"delta": {"content": "def"}, "finish_reason": None}]}
    speculative = {"mean_acceptance_length": 2.5, "num_spec_steps": 8}
    last = {"choices": [], "usage": {"completion_tokens": 20}, "metrics": {"speculative_decoding": speculative}}
    assert parse_event(json.dumps(text)) == Piece(text="def")
    assert parse_event(json.dumps(last)) == Piece(completion_tokens=20, acceptance_length=2.5)


def test_an_answer_too_short_to_verify_a_draft_has_no_acceptance_length() -> None:
    speculative = {"mean_acceptance_length": 1.0, "num_spec_steps": 0}
    assert parse_event(json.dumps({"choices": [], "metrics": {"speculative_decoding": speculative}})) == Piece()


def test_an_error_in_the_stream_is_raised_with_the_servers_words() -> None:
    with pytest.raises(RequestError, match="the replica was lost"):
        parse_event('{"error": {"message": "the replica was lost", "code": 502}}')


def test_summary_counts_speed_after_the_first_token() -> None:
    answer = Answer("x", ttft_s=0.5, total_s=1.5, completion_tokens=101, finish_reason="length", acceptance_length=3.14)
    assert answer.summary() == (
        "101 tokens · 100 tokens/s · first token after 500 ms · acceptance length 3.14 · cut at the length limit"
    )


def test_summary_of_a_stopped_answer_claims_no_figures() -> None:
    assert Answer("x", 0.5, 1.5, None, None, None).summary() == "stopped after 1.5 s"


def test_acceptance_over_the_server_is_counted_between_two_reads_of_every_replica() -> None:
    idle = {"drafts": 0, "accepted": 0}
    before = draft_counts([{"drafts": 10, "accepted": 20}, idle])
    after = draft_counts([{"drafts": 20, "accepted": 40}] * 2)
    assert before == (10.0, 20)
    assert acceptance_between(before, after) == pytest.approx(1 + 60 / 30)
    assert acceptance_between(before, before) is None
    assert acceptance_between(None, after) is None
    assert draft_counts([{"drafts": None, "accepted": None}]) is None
    assert draft_counts([]) is None


def test_the_replica_that_answered_is_the_one_that_generated_meanwhile() -> None:
    before = [{"id": "a", "generation_tokens": 900}, {"id": "b", "generation_tokens": 10}]
    after = [{"id": "a", "generation_tokens": 900}, {"id": "b", "generation_tokens": 50}]
    assert busiest(before, after) == after[1]
    assert busiest(before, []) is None


def test_summary_of_an_answer_has_a_second_line_for_k() -> None:
    answer = Answer("x", 0.5, 1.5, 101, "stop", 3.14, depth="K = 7 (as configured)")
    assert answer.summary().splitlines()[1:] == ["K = 7 (as configured)"]


def test_summary_says_when_the_acceptance_length_is_not_the_answers_own() -> None:
    answer = Answer("x", 0.5, 1.5, 101, "stop", 3.14, server_wide=True)
    assert answer.summary().endswith("acceptance length 3.14 (of all requests at that time)")


def fleet(generated: int, **changes: Any) -> dict[str, Any]:
    replica = {
        "id": "a1",
        "state": "RUNNING",
        "running_requests": 3,
        "waiting_requests": 0,
        "kv_usage_ratio": 0.25,
        "depths": [7, 7, 3],
        "depth_effective": 5.5,
        "acceptance_length": 2.875,
        "generation_tokens": generated,
    }
    return {"models": [{"name": "model", "replicas": [replica | changes]}]}


def shown(before: dict[str, Any], now: dict[str, Any]) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(fleet_view(before, now, 2.0))
    return capture.get()


def test_status_shows_depth_asked_for_and_in_effect_and_speed_between_reads() -> None:
    text = shown(fleet(1000), fleet(1300))
    for figure in ("7..3 / 5.5", "2.88", "25%", " 150 ", "running"):
        assert figure in text


def test_status_says_below_its_table_why_k_is_what_it_is() -> None:
    known = {"depth_reason": "an operator pinned K = 7", "speedup_ratio": 1.2, "speedup_low": 1.1, "speedup_high": 1.3}
    text = shown(fleet(1), fleet(1, depths=[7, 7], **known))
    assert "a1: K = 7 (an operator pinned K = 7) · speculation speedup 1.20 (95 % interval 1.10 to 1.30)" in text
    assert "a1: " not in shown(fleet(1), fleet(1, depths=[]))


def test_status_says_who_chose_the_depths_unless_it_is_the_file() -> None:
    assert "7..3 / 5.5 pinned" in shown(fleet(1), fleet(1, depth_mode="pinned"))
    assert "static" not in shown(fleet(1), fleet(1, depth_mode="static"))


@pytest.mark.parametrize(("age_s", "told"), [(0.4, False), (42.0, True), (None, False)])
def test_status_tells_of_a_plan_that_no_router_confirms(age_s: float | None, told: bool) -> None:
    replica = fleet(1, depth_mode="adaptive", plan_age_s=age_s)
    text = " ".join(shown(replica, replica).split())
    assert ("no Router for 42 s" in text) == told


def test_status_of_a_replica_that_restarted_has_no_speed_rather_than_a_negative_one() -> None:
    row = next(line for line in shown(fleet(1000), fleet(10)).splitlines() if "a1" in line)
    assert row.split("│")[-2].strip() == "-"


def test_status_of_a_replica_that_does_not_speculate_has_no_depth() -> None:
    plain = fleet(10, depths=[], depth_effective=None, acceptance_length=None)
    row = next(line for line in shown(plain, plain).splitlines() if "a1" in line)
    assert [cell.strip() for cell in row.split("│")[4:6]] == ["-", "-"]


def test_status_of_a_model_without_replicas_says_so() -> None:
    empty = {"models": [{"name": "model", "replicas": []}]}
    assert "no replica" in shown(empty, empty)
