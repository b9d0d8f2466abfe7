"""Both formats of a keys file; errors name line and field, and never show a key."""

import hashlib
from pathlib import Path

import pytest

from peagle.api.clients.keys_file import Clients, digest_of, parse_clients, read_bytes
from peagle.errors import ConfigError
from peagle.router.fairness.client_terms import Client, ClientClass, Limits

SECRET = "sk-4f9c"
YAML = f"""
# teams
keys:
  - name: team-a
    key: {SECRET}
  - name: team.b_2
    key_sha256: {hashlib.sha256(b"beta").hexdigest()}
    weight: 0.5
    class: batch
    limits: {{requests_per_minute: 60, tokens_per_minute: 6000, requests_at_once: 4, tokens_waiting: 9000}}
"""


def parsed(text: str) -> Clients:
    return parse_clients(text.encode(), "keys.yaml")


def test_a_flat_file_names_its_keys_after_their_digests() -> None:
    digest = hashlib.sha256(b"alpha").hexdigest()
    assert parsed("# comment\n\n alpha \nalpha\n") == {bytes.fromhex(digest): Client(f"key-{digest[:8]}")}


@pytest.mark.parametrize("text", [YAML, f"---{YAML}", f"\n\ufeff{YAML}".replace("\ufeff", "")])
def test_yaml_gives_keys_names_weights_classes_and_limits(text: str) -> None:
    assert parsed(text) == {
        digest_of(SECRET.encode()): Client("team-a"),
        digest_of(b"beta"): Client("team.b_2", 0.5, ClientClass.BATCH, Limits(60, 6000, 4, 9000)),
    }


def test_json_is_yaml_and_a_byte_order_mark_is_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b'\xef\xbb\xbf{"keys": [{"name": "a", "key": "k\xc3\xbc"}]}')
    assert parse_clients(read_bytes(path), str(path)) == {digest_of("kü".encode()): Client("a")}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("name: a b\n  key: K", "line 2: name = 'a b': it must be 1 to 64 letters"),
        (f"name: {'x' * 65}\n  key: K", "line 2: name"),
        ("name: 7\n  key: K", "line 2: name = 7: it must be text"),
        ("key: K", "line 2: name: it is required"),
        ("name: a", "line 2: key: it has neither key nor key_sha256"),
        (f"name: a\n  key: K\n  key_sha256: {'ab' * 32}", "line 3: key: it has both"),
        ("name: a\n  key_sha256: K", "line 3: key_sha256: it is not 64 hexadecimal digits"),
        ("name: a\n  key: 12345678", "line 3: key: it must be text"),
        ("name: a\n  key: ''", "line 3: key: it is empty"),
        ("name: a\n  key: ' K'", "line 3: key: it is empty, or contains a line break"),
        ("name: a\n  key: K\n  weight: 0", "line 4: weight = 0: it must be at least 0.01"),
        ("name: a\n  key: K\n  weight: 1001", "line 4: weight = 1001: it must be at most 1000"),
        ("name: a\n  key: K\n  weight: .nan", "line 4: weight"),
        ("name: a\n  key: K\n  class: slow", "line 4: class = 'slow': it must be 'interactive' or 'batch'"),
        ("name: a\n  key: K\n  limits: 60", "line 4: limits"),
        ("name: a\n  key: K\n  limits: {requests_per_minute: 0}", "line 4: limits.requests_per_minute = 0"),
        ("name: a\n  key: K\n  limits: {requests_per_hour: 1}", "line 4: limits.requests_per_hour"),
        ("name: a\n  key: K\n  wieght: 2", "line 4: wieght: there is no such field. Did you mean weight? Known in a "),
        ("team: K", "line 2: team: there is no such field"),
        ("name: a\n  key: K\n  name: b", "line 4: name stands there twice"),
        ("name: a\n  key: K\n- name: a\n  key: L", "line 4: name = 'a': line 2 has the same name"),
        ("name: a\n  key: K\n- name: b\n  key: K", "line 4: key: it is also the key of a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_line_and_field(entry: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(f"keys:\n- {entry}\n".replace("K", SECRET))
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys: []\n", "it has no key"),
        ("keys: 3\n", "keys.yaml: keys: it must be a list"),
        ("keys:\n- sk-4f9c\n", "line 2: keys: it must have the fields of a key"),
        ("keys:\n- name: a\n  key: sk-4f9c\nextra: 1\n", "line 4: extra: there is no such field"),
        ("keys:\n- name: a\n   key: sk-4f9c\n", "line 3: it is not YAML"),
        ("kyes:\n- name: a\n  key: sk-4f9c\n", "line 2: name: it looks like YAML, which must begin with keys:"),
        ("- name: a\n  key: sk-4f9c\n", "line 1: name: it looks like YAML"),
    ],
)
def test_a_file_that_is_no_list_of_keys_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("keys:\n- name: a\n- name: b\n  key: x\n  weight: 0\n")
    assert [problem.field for problem in caught.value.problems] == [
        "keys.yaml, line 2: key",
        "keys.yaml, line 5: weight",
    ]
