"""Which placement driver it is: made with its state, told to everybody, asked on every connection, kept by stores."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreError, StoreVersionError
from sbp_back.client.leader import pd_carrier
from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.placement_driver.pd_service import (
    PlacementDriverService,
    PlacementDriverSetup,
    start_placement_driver,
)
from sbp_back.placement_driver.state import StateError
from sbp_back.range_server.home import StoreHome
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.transport.listener import Listener
from sbp_back.transport.serving import ListenAt
from sbp_back.transport.tcp_carrier import Introduce, TcpCarrier, TcpOptions
from sbp_back.wire import model as m
from sbp_back.wire.identity import ask_identity, identity_of, new_identity, pd_name
from sbp_back.wire.v02 import DialectV02
from tests.databases import pd_state
from tests.kit.waiting import until
from tests.sbp_document.document_lab import DIALECTS, running

STORE = StoreOptions(segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0)
LOCAL = ("127.0.0.1", 0)
OPTIONS = TcpOptions(backoff_first=0.001, backoff_limit=0.01)


# --- the identity itself --------------------------------------------------------------------------------------------


def test_identities_are_told_in_names() -> None:
    made = [new_identity() for _ in range(2000)]
    assert len(set(made)) == len(made)
    for identity in made:
        assert len(identity) == 22
        assert not identity.startswith("-")
        assert identity_of([m.PdNode(pd_name(identity), "a:1", True)]) == identity
    node = m.PdNode(pd_name(made[0]), "a:1")
    assert identity_of([m.PdNode("other", "b:1"), node]) == made[0]


@pytest.mark.parametrize(
    "name",
    ["", "anabranch", "pd-0", "anabranch-", "anabranch-" + "x" * 21, "anabranch-" + "x" * 23, "anabranch-" + "/" * 22],
)
def test_other_names_tell_nothing(name: str) -> None:
    assert identity_of([m.PdNode(name, "a:1", True)]) == ""
    assert identity_of([]) == ""


def read_identity(path: Path) -> str:
    with sqlite3.connect(path) as db:
        (identity,) = db.execute("SELECT value FROM identity").fetchone()
    return str(identity)


async def state_identity(path: Path) -> str:
    state = pd_state(path, asyncio.get_running_loop())
    await state.close()
    return state.identity


async def test_a_state_keeps_its_identity_for_life(tmp_path: Path) -> None:
    path = tmp_path / "pd.sqlite"
    first = await state_identity(path)
    assert [await state_identity(path) for _ in range(2)] == [first, first]
    assert await state_identity(tmp_path / "other.sqlite") != first


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_a_state_of_an_older_format_gets_an_identity(tmp_path: Path, version: int) -> None:
    path = tmp_path / "pd.sqlite"
    state = pd_state(path, asyncio.get_running_loop())
    pd = InProcessCarrier(PlacementDriver(state))
    assert (await pd.call(m.CreateStreamRequest(m.StreamInfo()))).status.ok
    await state.close()
    with sqlite3.connect(path) as db:
        if version < 3:
            db.execute("DROP TABLE identity")
        if version < 4:
            db.execute("ALTER TABLE ranges DROP COLUMN floor")
            db.execute("DROP TABLE news")
        if version < 5:
            db.execute("ALTER TABLE streams DROP COLUMN inside")
        db.execute("DROP TABLE row_sums")
        db.execute("DROP TABLE adopted")
        db.execute("DROP TABLE objects")
        if version == 1:
            db.execute("ALTER TABLE ranges DROP COLUMN document")
        db.execute(f"PRAGMA user_version = {version}")
    identity = await state_identity(path)
    assert (identity == state.identity) == (version >= 3)
    assert await state_identity(path) == identity
    again = pd_state(path, asyncio.get_running_loop())
    created = await InProcessCarrier(PlacementDriver(again)).call(m.CreateStreamRequest(m.StreamInfo()))
    assert getattr(created, "stream").stream_id == 1, "what was there is still there"  # noqa: B009
    await again.close()


async def test_a_state_without_its_identity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pd.sqlite"
    await state_identity(path)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM identity")
    with pytest.raises(StateError, match="identity is not what was stored"):
        pd_state(path, asyncio.get_running_loop())
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE row_sums")
        db.execute("DROP TABLE adopted")
        db.execute("DROP TABLE objects")
        db.execute("PRAGMA user_version = 5")
    with pytest.raises(StateError, match="lost its identity"):
        pd_state(path, asyncio.get_running_loop())


async def test_document_and_sbp_02_tell_the_same_identity(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        identity = embedded.placement_driver.identity
        assert identity == read_identity(tmp_path / "pd.sqlite")
        for listener, dialect in (
            ("sbp-pd", "sbp-0.2"),
            ("sbp-v0.1", "sbp-v0.1"),
            ("sbp-v0.1-april", "sbp-v0.1-april"),
        ):
            carrier = TcpCarrier(*embedded.addresses[listener], DIALECTS[dialect])
            response = await carrier.call(m.DescribePdRequest(m.RangeServerInfo(0, "me:1")))
            assert isinstance(response, m.DescribePdResponse)
            assert [node.name for node in response.nodes] == [f"anabranch-{identity}"]
            assert await ask_identity(carrier.call) == identity
            await carrier.close()


async def test_who_does_not_answer_properly_has_no_identity() -> None:
    async def wrong(_: m.Request) -> m.Response:
        return m.HeartbeatResponse()

    with pytest.raises(SbpError, match="HeartbeatResponse is no answer"):
        await ask_identity(wrong)


# --- connections ----------------------------------------------------------------------------------------------------


class Named:
    """Says who it is when told to, echoes pings, and remembers the order of what it was asked."""

    def __init__(self, name: str = "somebody") -> None:
        self.name = name
        self.seen: list[type[m.Request]] = []
        self.mute = False

    def handle(self, request: m.Request, reply: Reply) -> None:
        self.seen.append(type(request))
        if isinstance(request, m.DescribePdRequest):
            if not self.mute:
                reply(m.DescribePdResponse(nodes=[m.PdNode(self.name, "", True)]))
        elif isinstance(request, m.PingRequest):
            reply(m.PingResponse(request.header, request.payload))
        elif isinstance(request, m.HeartbeatRequest):
            reply(m.HeartbeatResponse(request.client_id, request.role))


@asynccontextmanager
async def reaching(
    handler: Named, introduce: Introduce, options: TcpOptions = OPTIONS
) -> AsyncIterator[tuple[Listener, TcpCarrier]]:
    listener = Listener(handler, DialectV02(), *LOCAL)
    await listener.start()
    carrier = TcpCarrier(*listener.address, options=options, introduce=introduce)
    yield listener, carrier
    await carrier.close()
    await listener.close()


def wanting(name: str) -> Introduce:
    async def introduce(call: Callable[[m.Request], Awaitable[m.Response]]) -> str | None:
        response = await call(m.DescribePdRequest())
        assert isinstance(response, m.DescribePdResponse)
        found = response.nodes[0].name
        return None if found == name else f"it is {found}, not {name}"

    return introduce


async def test_a_connection_is_introduced_before_it_is_used() -> None:
    handler = Named()
    async with reaching(handler, wanting("somebody")) as (_, carrier):
        pings = [carrier.call(m.PingRequest(b"%d" % n)) for n in range(3)]
        assert await asyncio.gather(*pings) == [m.PingResponse(b"%d" % n) for n in range(3)]
        assert await carrier.call(m.PingRequest(b"last")) == m.PingResponse(b"last")
    assert handler.seen == [m.DescribePdRequest] + 4 * [m.PingRequest]


async def test_a_refused_connection_carries_nothing_and_the_next_may_be_right() -> None:
    handler = Named("another")
    async with reaching(handler, wanting("somebody")) as (_, carrier):
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"127.0.0.1:\d+: it is another, not somebody"):
                await carrier.call(m.PingRequest())
        assert set(handler.seen) == {m.DescribePdRequest}
        assert not carrier.connected
        handler.name = "somebody"
        assert await carrier.call(m.PingRequest(b"now")) == m.PingResponse(b"now")


async def test_every_connection_is_introduced() -> None:
    handler = Named()
    async with reaching(handler, wanting("somebody")) as (listener, carrier):
        await carrier.call(m.PingRequest())
        address = listener.address
        await listener.close()
        # Meanwhile nothing was asked of it: only the connection knows that another one has the address now.
        other = Named("another")
        successor = Listener(other, DialectV02(), *address)
        await successor.start()
        async with asyncio.timeout(20):
            while True:
                try:
                    await carrier.call(m.PingRequest())
                except ConnectionLost as error:
                    if "it is another" in error.message:
                        break
        assert m.PingRequest not in other.seen
        await successor.close()


async def test_whoever_does_not_say_who_it_is_in_time_is_refused() -> None:
    handler = Named()
    handler.mute = True
    options = TcpOptions(backoff_first=0.001, backoff_limit=0.01, connect_timeout=0.05)
    async with reaching(handler, wanting("somebody"), options) as (_, carrier):
        with pytest.raises(ConnectionLost, match="did not say in time who it is"):
            await carrier.call(m.PingRequest())
        assert handler.seen == [m.DescribePdRequest]


async def test_a_server_that_hangs_up_before_it_says_who_it_is() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, *LOCAL)
    host, port = server.sockets[0].getsockname()
    carrier = TcpCarrier(host, port, options=OPTIONS, introduce=wanting("somebody"))
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"closed|broke"):
            await carrier.call(m.PingRequest())
    await carrier.close()
    server.close()
    await server.wait_closed()


async def test_a_carrier_closed_while_a_server_is_asked_who_it_is() -> None:
    handler = Named()
    handler.mute = True
    async with reaching(handler, wanting("somebody")) as (_, carrier):
        waiting = asyncio.ensure_future(carrier.call(m.PingRequest()))
        await until(lambda: handler.seen)
        await carrier.close()
        with pytest.raises(ConnectionLost, match="carrier is closed"):
            await waiting


async def test_of_several_addresses_the_right_one_is_used() -> None:
    wrong, right = Named("another"), Named("somebody")
    listeners = [Listener(handler, DialectV02(), *LOCAL) for handler in (wrong, right)]
    for listener in listeners:
        await listener.start()
    addresses = ",".join("{}:{}".format(*listener.address) for listener in listeners)
    carrier = pd_carrier(addresses, options=OPTIONS, introduce=wanting("somebody"))
    with pytest.raises(ConnectionLost, match="it is another"):
        await carrier.call(m.PingRequest())
    assert await carrier.call(m.PingRequest(b"x")) == m.PingResponse(b"x")
    assert m.PingRequest not in wrong.seen
    await carrier.close()
    for listener in listeners:
        await listener.close()


# --- range servers --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def placement_driver(path: Path) -> AsyncIterator[PlacementDriverService]:
    def nowhere(_: m.RangeServerInfo) -> Carrier:
        raise ValueError("no range server is to be told anything")

    pd = await start_placement_driver(path, PlacementDriverSetup(listen=ListenAt(LOCAL)), nowhere)
    try:
        yield pd
    finally:
        await pd.close()


@asynccontextmanager
async def range_server(
    path: Path, pd: Carrier, *, strange: bool = False, home: bool = True
) -> AsyncIterator[RangeServerService]:
    store = await open_store(path, STORE)
    setup = RangeServerSetup(
        heartbeat_seconds=0.02, meet_seconds=30, home=StoreHome(store) if home else None, serve_strange=strange
    )
    service = await start_range_server(store, pd, setup)
    try:
        yield service
    finally:
        await service.close()


async def with_data(path: Path, pd: PlacementDriverService) -> None:
    """A range server in ``path`` that keeps range 0 of stream 0."""
    to_pd = InProcessCarrier(pd.driver)
    async with range_server(path, to_pd) as service:
        assert (await to_pd.call(m.CreateStreamRequest(m.StreamInfo()))).status.ok
        assert (await to_pd.call(m.CreateRangeRequest(m.RangeInfo(0, 1, 0, 0)))).status.ok
        to_server = InProcessCarrier(service.server)
        assert (await to_server.call(m.CreateRangeRequest(m.RangeInfo(0, 1, 0, 0)))).status.ok


async def delete_stream_0(pd: Carrier) -> None:
    """A stream of that number is made and deleted there."""
    assert (await pd.call(m.CreateStreamRequest(m.StreamInfo()))).status.ok
    assert (await pd.call(m.DeleteStreamRequest(0))).status.ok


def lock_of(path: Path) -> dict[str, object]:
    fields = json.loads((path / "LOCK").read_text())
    assert isinstance(fields, dict)
    return fields


async def test_a_range_server_keeps_to_the_placement_driver_that_numbered_it(tmp_path: Path) -> None:
    rs = tmp_path / "rs"
    async with placement_driver(tmp_path / "own") as own, placement_driver(tmp_path / "other") as other:
        await with_data(rs, own)
        assert lock_of(rs)["placement_driver"] == own.driver.identity
        strange = InProcessCarrier(other.driver)
        await delete_stream_0(strange)
        with pytest.raises(StoreError, match=f"{other.driver.identity}, but .* placement driver {own.driver.identity}"):
            async with range_server(rs, strange):
                pass
        assert other.driver.servers.alive() == []
        async with range_server(rs, InProcessCarrier(own.driver)) as service:
            assert (0, 0) in service.store.ranges
            assert service.server.info.server_id in own.driver.servers.alive()


async def test_another_placement_driver_met_later_is_refused_as_well(tmp_path: Path) -> None:
    rs = tmp_path / "rs"
    async with placement_driver(tmp_path / "own") as own, placement_driver(tmp_path / "other") as other:
        await with_data(rs, own)
        await delete_stream_0(InProcessCarrier(other.driver))
        assert own.listener is not None
        assert other.listener is not None
        store = await open_store(rs, STORE)
        home = StoreHome(store)
        host, port = own.listener.address
        carrier = TcpCarrier(host, port, options=OPTIONS, introduce=home.introduce)
        service = await start_range_server(store, carrier, RangeServerSetup(heartbeat_seconds=0.02, home=home))
        await own.listener.close()
        successor = Listener(other.driver, DialectV02(), host, port)
        await successor.start()
        await until(lambda: home.refusal is not None)
        with pytest.raises(ConnectionLost, match="but what this range server keeps belongs to"):
            await carrier.call(m.HeartbeatRequest("rs"))
        assert other.driver.servers.alive() == []
        assert (0, 0) in store.ranges
        await service.close()
        await carrier.close()
        await successor.close()


async def test_a_store_of_an_earlier_release_takes_the_first_that_tells(tmp_path: Path) -> None:
    rs = tmp_path / "rs"
    async with placement_driver(tmp_path / "own") as own, placement_driver(tmp_path / "other") as other:
        await with_data(rs, own)
        fields = lock_of(rs)
        del fields["placement_driver"]
        (rs / "LOCK").write_text(json.dumps(fields))
        # One that does not tell changes nothing.
        store = await open_store(rs, STORE)
        home = StoreHome(store)
        assert await home.introduce(InProcessCarrier(Named()).call) is None
        assert store.placement_driver == ""
        store.close()
        async with range_server(rs, InProcessCarrier(own.driver)):
            pass
        assert lock_of(rs)["placement_driver"] == own.driver.identity
        with pytest.raises(StoreError, match="this is"):
            async with range_server(rs, InProcessCarrier(other.driver)):
                pass
        store = await open_store(rs, STORE)
        refusal = await StoreHome(store).introduce(InProcessCarrier(Named()).call)
        assert refusal is not None
        assert "a placement driver that does not say which one it is" in refusal
        store.close()


async def test_a_store_without_a_number_belongs_to_nobody(tmp_path: Path) -> None:
    store = await open_store(tmp_path, STORE)
    home = StoreHome(store)
    identities = [new_identity(), new_identity()]
    for identity in identities:
        assert await home.introduce(InProcessCarrier(Named(pd_name(identity))).call) is None
    assert lock_of(tmp_path)["placement_driver"] == "", "written with the number"
    store.assign_server_id(3)
    store.close()
    assert lock_of(tmp_path)["placement_driver"] == identities[1]
    store = await open_store(tmp_path, STORE)
    assert store.placement_driver == identities[1]
    with pytest.raises(StoreVersionError, match=identities[1]):
        store.assign_placement_driver(identities[0])
    store.close()


async def test_an_embedded_store_beside_a_new_placement_driver_is_left_alone(tmp_path: Path) -> None:
    """The state of the placement driver was lost: the data is served, and nobody decides about it."""
    async with running(tmp_path) as embedded:
        stream_id = (await embedded.client.create_stream()).stream_id
        assert stream_id == 0
        assert (await embedded.client.pd.call(m.CreateRangeRequest(m.RangeInfo(0, 1, 0, 0)))).status.ok
        to_server = InProcessCarrier(embedded.range_server)
        assert (await to_server.call(m.CreateRangeRequest(m.RangeInfo(0, 1, 0, 0)))).status.ok
    for file in tmp_path.glob("pd.sqlite*"):
        file.unlink()
    async with running(tmp_path) as embedded:
        assert embedded.placement_driver.servers.alive() == []
        await delete_stream_0(embedded.client.pd)
    async with running(tmp_path) as embedded:
        assert (0, 0) in embedded.store.ranges
