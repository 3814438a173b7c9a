"""Range servers over one bucket: one is killed or paused, another one adopts its log, and clients miss nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sbp_back.errors import ConnectionLost
from sbp_back.transport.tcp_carrier import tcp_connector
from sbp_back.wire import model as m
from tests.external.cluster import PATIENCE, Cluster, Load, Server
from tests.kit.waiting import wait_until
from tests.s3_server import ACCESS, s3_server

PARTITIONS = 6


@pytest.fixture(params=["file", pytest.param("s3", marks=(pytest.mark.go, pytest.mark.slow, pytest.mark.long))])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Of three range servers, with their logs in one bucket."""
    (tmp_path / "store" / "bucket").mkdir(parents=True)

    def run(objects: str) -> Iterator[Cluster]:
        made = Cluster(tmp_path, 3, objects)
        try:
            yield made.start()
        finally:
            made.dispose()
            request.node.add_report_section("teardown", "logs", made.tail())

    if request.param == "file":
        yield from run(f"file://{tmp_path}/store/bucket")
        return
    with s3_server(tmp_path / "store") as endpoint:
        for name, value in {**ACCESS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        yield from run("s3://bucket/prefix")


async def ask(server: Server, request: m.Request) -> m.Response:
    carrier = tcp_connector()(m.RangeServerInfo(-1, server.address))
    try:
        return await carrier.call(request, PATIENCE)
    finally:
        await carrier.close()


def adopt(by: Server, server_id: int) -> m.AdoptServerResponse:
    response = asyncio.run(ask(by, m.AdoptServerRequest(server_id)))
    assert isinstance(response, m.AdoptServerResponse), response
    return response


def server_id(server: Server) -> int:
    return int(server.metric("anabranch_range_server_id"))


def places(cluster: Cluster) -> set[int]:
    return {server for servers in asyncio.run(cluster.placement("t", PARTITIONS)).values() for server in servers}


def test_what_a_killed_range_server_had_is_served_by_who_adopts_it_and_by_who_adopts_that_one(
    cluster: Cluster,
) -> None:
    first, second, third = cluster.servers
    one, two, three = map(server_id, cluster.servers)
    wait_until(lambda: cluster.alive() >= 3, "range servers report")
    cluster.create_topic("t", PARTITIONS)
    load = Load(cluster.node.kafka, "t", PARTITIONS)
    load.start()
    load.more(500)
    assert places(cluster) == {one, two, three}

    first.kill()
    response = adopt(second, one)
    assert (response.status.ok, response.server_id) == (True, two), response
    assert places(cluster) == {two, three}
    load.more(500)
    assert adopt(second, one).status.ok, "it may be repeated"
    refused = adopt(third, one)
    assert (refused.status.ok, refused.server_id) == (False, two), "somebody else has it"

    # What comes back is another server, with a log of its own, and may be given ranges.
    first.start()
    again = server_id(first)
    assert again not in (one, two, three)
    load.more(500)

    # What the adopter has adopted goes with it; the placement driver, too, starts anew in between.
    second.kill()
    cluster.pd.kill()
    cluster.pd.start()
    wait_until(lambda: cluster.alive() >= 2, "range servers report")
    assert adopt(third, two).status.ok
    assert places(cluster) <= {three, again}
    load.more(500)
    third.kill()
    third.start()
    load.more(500)
    load.finish()
    load.verify(cluster.node.kafka)


def test_a_range_server_that_wakes_up_acknowledges_nothing_after_its_fence(cluster: Cluster) -> None:
    first, second, _third = cluster.servers
    one = server_id(first)
    cluster.create_topic("t", PARTITIONS)
    load = Load(cluster.node.kafka, "t", PARTITIONS)
    load.start()
    load.more(500)
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    assert adopt(second, one).status.ok
    load.more(500)
    first.process.send_signal(signal.SIGCONT)
    # Somebody who still believes that it is there: the node went on elsewhere.
    with suppress(ConnectionLost):  # it may have found out already, and ended
        created = asyncio.run(ask(first, m.CreateRangeRequest(m.RangeInfo(1000, 1, 0, 0))))
        assert not created.status.ok, created
    assert first.process.wait(PATIENCE) != 0
    load.more(500)
    load.finish()
    load.verify(cluster.node.kafka)
