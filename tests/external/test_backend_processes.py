"""The commands ``pd`` and ``range-server``: start, refuse, tell, drain, end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.external.cluster import ANY, SERVER_SETTINGS, Server
from tests.kit.waiting import wait_until
from tests.node_process import NodeFailed, NodeProcess
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Make = Callable[..., Server]


@pytest.fixture
def server_of(tmp_path: Path) -> Iterator[Make]:
    """Makes servers, not started."""
    made: list[Server] = []

    def make(kind: str, name: str, *arguments: str, **settings: str) -> Server:
        made.append(Server(kind, tmp_path / name, list(arguments), {**SERVER_SETTINGS, **settings}))
        return made[-1]

    yield make
    for server in made:
        server.dispose()


def get(server: Server, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{server.addresses['metrics']}{path}", timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def events(server: NodeProcess) -> list[dict[str, object]]:
    """What the process has logged; every line is an object."""
    return [json.loads(line) for line in server.tail().splitlines()]


def promised(server: NodeProcess) -> list[str]:
    return [str(e["event"]) for e in events(server) if str(e["event"]).startswith("not promised: ")]


def ended(server: Server) -> tuple[int, str]:
    """Exit code of a process that ends by itself, and what it said."""
    done = subprocess.run(server.command(), capture_output=True, timeout=60, check=False)
    return done.returncode, done.stderr.decode()


def test_a_pair_of_servers_lives(server_of: Make) -> None:
    pd = server_of("pd", "pd", **{"sbp.alive_ms": "1200"})
    pd.start()
    assert set(pd.addresses) == {"sbp-pd", "metrics"}
    server = server_of("range-server", "rs", "--pd", pd.address)
    server.start()
    assert set(server.addresses) == {"sbp-range-server", "metrics"}
    for process in (pd, server):
        assert get(process, "/healthz") == (200, {"healthy": True, "failure": None})
        assert get(process, "/readyz") == (200, {"ready": True})
        assert process.metric("anabranch_cpu_seconds_total") > 0
    wait_until(lambda: pd.metric("anabranch_pd_range_servers_alive") == 1, "the range server reports")
    assert server.metric("anabranch_store_segments") >= 1
    server.kill()
    wait_until(lambda: pd.metric("anabranch_pd_range_servers_alive") == 0, "its silence is noticed")
    server.start()
    assert server.metric("anabranch_range_server_id") == 0, "a number is given once and kept"
    for process in (server, pd):
        assert process.terminate() == 0
        assert not process.ready_file.exists()
        assert [e["event"] for e in events(process)][-1] == "stopped"


def test_a_range_server_without_a_number_waits_for_the_placement_driver(server_of: Make) -> None:
    pd = server_of("pd", "pd")
    pd.start()
    pd.terminate()
    server = server_of("range-server", "rs", "--pd", pd.address)
    server.launch()
    wait_until(lambda: "waiting for the placement driver" in server.tail(), "it says what it waits for")
    assert not server.ready_file.exists()
    pd.start()
    server.await_ready()
    # With a number it needs nobody to start.
    pd.kill()
    server.restart()


def test_a_range_server_that_waits_can_be_stopped(server_of: Make) -> None:
    server = server_of("range-server", "rs", "--pd", f"127.0.0.1:{free_port()}")
    server.launch()
    wait_until(lambda: "waiting for the placement driver" in server.tail(), "it waits")
    assert server.terminate() == 0
    server.launch()  # the directory is free again
    wait_until(lambda: server.tail().count("waiting for the placement driver") == 2, "it waits")


def test_a_directory_is_used_once(server_of: Make) -> None:
    pd = server_of("pd", "pd")
    pd.start()
    code, said = ended(server_of("pd", "pd"))
    assert (code, "in use by another placement driver" in said) == (4, True), said
    server = server_of("range-server", "rs", "--pd", pd.address)
    server.start()
    code, said = ended(server_of("range-server", "rs", "--pd", pd.address))
    assert (code, "in use by another process" in said) == (4, True), said
    assert pd.terminate() == 0


def test_wrong_usage_is_refused_in_one_sentence(server_of: Make) -> None:
    for server, message in (
        (server_of("range-server", "rs"), "needs sbp.pd"),
        (server_of("range-server", "rs", "--pd", "nonsense"), "sbp.pd"),
        (server_of("range-server", "rs", "--pd", "a:1,b:0"), "sbp.pd"),
        (server_of("pd", "pd", **{"listen.kafka": ANY}), "there is no listener 'kafka'"),
        (server_of("pd", "pd", **{"advertise.sbp-pd": "nonsense"}), "HOST:PORT"),
        (server_of("pd", "pd", **{"sbp.alive_ms": "1"}), "sbp.alive_ms"),
    ):
        code, said = ended(server)
        assert (code, message in said) == (2, True), said
        assert "Traceback" not in said


def test_an_address_that_is_taken(server_of: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pd = server_of("pd", "pd")
        pd.addresses["sbp-pd"] = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = ended(pd)
        assert (code, "in use" in said) == (4, True), said
    pd.start()  # nothing holds the directory


def test_a_node_needs_to_know_its_placement_driver(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", settings={"sbp.mode": "external"}, listen={"kafka": ANY})
    with pytest.raises(NodeFailed, match=r"sbp.mode = external needs sbp.pd"):
        node.start()
    node = NodeProcess(
        tmp_path / "node", settings={"sbp.mode": "external", "sbp.pd": "a:1"}, listen={"sbp-range-server": ANY}
    )
    with pytest.raises(NodeFailed, match="there is no listener 'sbp-range-server'"):
        node.start()


def test_what_is_not_promised_is_said(server_of: Make, tmp_path: Path) -> None:
    pd = server_of("pd", "pd")
    pd.start()
    assert any("one placement driver" in sentence for sentence in promised(pd))
    server = server_of(
        "range-server", "rs", "--pd", pd.address, **{"sbp.durability": "os", "sbp.retention_bytes": "1GiB"}
    )
    server.start()
    assert any("one copy" in sentence for sentence in promised(server))
    warnings = [str(e["event"]) for e in events(server) if e["level"] == "warning"]
    assert any("not power loss" in sentence for sentence in warnings)
    assert any("retention by total size" in sentence for sentence in warnings)
    listen = {"kafka": ANY, "console": "off"}
    external = {"sbp.mode": "external", "sbp.pd": pd.address}
    for settings, expected in (
        ({}, ["one copy of the data: what the disk of this node"]),
        ({"sbp.durability": "os"}, ["not power loss"]),
        (external, ["the disk of a range server", "while a range server is down", "decided by the range servers"]),
        ({**external, "sbp.flavor": "elastic-stream"}, ["O_DSYNC", "seals in memory", "neither trim nor delete"]),
    ):
        node = NodeProcess(tmp_path / f"node-{len(settings)}", settings=settings, listen=listen)
        try:
            node.start()
            said = promised(node)
            for words in expected:
                assert any(words in sentence for sentence in said), (settings, said)
        finally:
            node.dispose()


def test_a_node_starts_without_its_placement_driver_and_says_so(tmp_path: Path) -> None:
    settings = {"sbp.mode": "external", "sbp.pd": f"127.0.0.1:{free_port()}", "sbp.timeout_ms": "1000"}
    node = NodeProcess(tmp_path / "node", settings=settings, listen={"kafka": ANY, "console": ANY})
    try:
        node.start()
        assert any("placement driver does not answer" in str(e["event"]) for e in events(node))
        assert node.terminate() == 0
    finally:
        node.dispose()


def test_a_second_signal_cuts_what_does_not_end(server_of: Make) -> None:
    pd = server_of("pd", "pd", **{"node.drain_timeout_ms": "1h"})
    pd.start()
    host, port = pd.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as link:
        # Half a frame: a client that takes for ever.
        link.sendall(b"\0\0\0\x40\x17")
        process = pd.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        goaway = link.recv(100)
        assert goaway[4:7] == b"\x17\x00\x02"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    pd.process = None
