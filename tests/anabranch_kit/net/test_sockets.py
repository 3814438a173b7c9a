"""Of sockets that others have made it is asked once whose they are, and every time what came on them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import pytest

from anabranch_kit.net import sockets as module
from anabranch_kit.net.sockets import Arrived, Peer, Sockets, close


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors of which it is found out whose they are."""
    numbers: list[int] = []

    def whose(number: int, ports: frozenset[int]) -> Peer | None:
        numbers.append(number)
        return real(number, ports)

    real = module.find_peer
    monkeypatch.setattr(module, "find_peer", whose)
    return numbers


def accepted(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def seen(found: Mapping[Peer, Arrived]) -> dict[Peer, tuple[int, int]]:
    return {peer: (one.received, one.number) for peer, one in found.items()}


def test_each_socket_is_asked_whose_it_is_once(asked: list[int]) -> None:
    """And a descriptor that is used for something else is asked again."""
    sockets = Sockets()
    other, end = socket.socketpair()
    with end, other, socket.create_server(("127.0.0.1", 0)) as listener:
        ours = frozenset({listener.getsockname()[1]})
        assert sockets.to(ours) == {}
        assert other.fileno() in asked
        assert listener.fileno() in asked
        client, served = accepted(listener)
        with client:
            assert seen(sockets.to(ours)) == {client.getsockname(): (0, served.fileno())}
            asked.clear()
            client.sendall(bytes(24))
            served.recv(24, socket.MSG_WAITALL)
            assert seen(sockets.to(ours)) == {client.getsockname(): (24, served.fileno())}
            assert served.fileno() not in asked
            assert other.fileno() not in asked
            with served:
                again, instead = accepted(listener)
                os.dup2(instead.fileno(), served.fileno())
                instead.close()
                with again:
                    assert seen(sockets.to(ours)) == {again.getsockname(): (0, served.fileno())}
                    assert served.fileno() in asked


def test_only_the_connection_that_is_meant_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client, served = accepted(listener)
        with client:
            with served:
                number, peer = served.fileno(), client.getsockname()
                assert not close(number, ("127.0.0.1", 1))
                assert close(number, peer)
                assert client.recv(1) == b""
            assert not close(number, peer)
