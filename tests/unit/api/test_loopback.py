"""Operator routes accept only callers on the server's own machine, and refuse pages that pretend to be local."""

import grpc
import psutil
import pytest
from ray.serve._private import replica
from starlette.exceptions import HTTPException
from starlette.requests import Request

from peagle.api.loopback import ONE_MACHINE, answer_on_loopback, require_loopback


def request(client: str, host: str) -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/fleet",
            "query_string": b"",
            "server": ("127.0.0.1", 8000),
            "client": (client, 4711),
            "headers": [(b"host", host.encode())] if host else [],
        }
    )


@pytest.mark.parametrize("client", ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost", "[::1]:8000", "10.0.0.7:80", ""])
def test_callers_on_this_machine_are_answered(client: str, host: str) -> None:
    require_loopback(request(client, host))


@pytest.mark.parametrize("client", ["10.0.0.7", "::ffff:10.0.0.7", "192.168.1.4", "localhost", ""])
def test_callers_from_elsewhere_are_not(client: str) -> None:
    with pytest.raises(HTTPException, match="own machine only") as caught:
        require_loopback(request(client, "127.0.0.1:8000"))
    assert caught.value.status_code == 403


@pytest.mark.parametrize("host", ["evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:8000"])
def test_a_page_whose_name_leads_here_is_not(host: str) -> None:
    with pytest.raises(HTTPException, match=r"localhost or an IP address, not .*evil\.example") as caught:
        require_loopback(request("127.0.0.1", host))
    assert caught.value.status_code == 403


async def bound(address: str) -> str:
    """Return the address on which a replica's gRPC server listens when told to use `address`."""
    server = grpc.aio.server()
    port = replica.add_port_to_grpc_server(server, address)
    await server.start()
    try:
        listening = psutil.Process().net_connections("inet")
        return next(each.laddr.ip for each in listening if each.laddr.port == port)
    finally:
        await server.stop(None)


@pytest.mark.parametrize(("one_machine", "addresses"), [("0", {"127.0.0.1", "::ffff:127.0.0.1"}), ("1", {"::"})])
async def test_a_replica_of_a_cluster_of_one_machine_takes_calls_on_loopback(
    one_machine: str, addresses: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ONE_MACHINE, one_machine)
    monkeypatch.setattr(replica, "add_port_to_grpc_server", replica.add_port_to_grpc_server)
    answer_on_loopback()
    once = replica.add_port_to_grpc_server
    answer_on_loopback()
    assert replica.add_port_to_grpc_server is once
    assert await bound("[::]:0") in addresses
