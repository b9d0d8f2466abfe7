"""Free ports for servers that start while a model loads."""

import socket
from pathlib import Path

import pytest

from peagle.errors import StartupError
from peagle.host import ports


def test_no_port_is_given_twice_nor_is_one_that_the_system_hands_out() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if handed_out.exists() and (first := int(handed_out.read_text().split()[0])) >= ports.PORTS.stop:
        assert max(found) < first
    for port in found:
        with socket.socket() as listener:
            listener.bind((ports.HOST, port))


def test_a_port_that_someone_has_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = ports.free_ports(1)
    monkeypatch.setattr(ports, "PORTS", range(first, first + 1))
    with socket.socket() as taken:
        taken.bind((ports.HOST, first))
        with pytest.raises(StartupError, match=f"no 1 free ports from {first} to {first}"):
            ports.free_ports(1)
    assert ports.free_ports(1) == [first]
