"""Commands about table segments (docs/protocols/pravega.md, "Tables")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bridges.catalog.database.sql import Database
from pravega_front.service.answering import answering
from pravega_front.service.tables.life import DroppedTables
from pravega_front.service.tables.store import MoreRoom, NotWanted, Page, TableStore
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import TableKey

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.service.answering import Handler
    from pravega_front.session.connection import Connection, Encoded

_PAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of keys and values of one page."""
_SMALL_PAGE = 64 * 1024
"""Memory granted to a page at least, while memory is short."""


def register(store: SegmentStore, db: Database, dropped: DroppedTables) -> None:
    """Register the handlers of these commands."""
    settings = store.settings
    room = store.segments.room_for_tables
    tables = _Tables(TableStore(db, dropped, room, settings.table_bytes, settings.table_page))
    handlers: dict[type[wire.Command], Handler] = {
        wire.CreateTableSegment: tables.create,
        wire.DeleteTableSegment: tables.delete,
        wire.GetTableSegmentInfo: tables.info,
        wire.UpdateTableEntries: tables.update,
        wire.RemoveTableKeys: tables.remove,
        wire.ReadTable: tables.read,
        wire.ReadTableKeys: tables.keys,
        wire.ReadTableEntries: tables.entries,
        wire.ReadTableEntriesDelta: tables.delta,
    }
    store.handlers |= {command: answering(handler) for command, handler in handlers.items()}


class _Tables:
    def __init__(self, tables: TableStore) -> None:
        self._tables = tables

    async def create(self, connection: Connection, request: wire.CreateTableSegment) -> wire.Command:
        await self._tables.create(request.segment, max(0, request.key_length))
        return wire.SegmentCreated(request.request_id, request.segment)

    async def delete(self, connection: Connection, request: wire.DeleteTableSegment) -> wire.Command:
        await self._tables.delete(request.segment, request.must_be_empty)
        return wire.SegmentDeleted(request.request_id, request.segment)

    async def info(self, connection: Connection, request: wire.GetTableSegmentInfo) -> wire.Command:
        info = await self._tables.info(request.segment)
        return wire.TableSegmentInfo(request.request_id, request.segment, 0, info.length, info.entries, info.key_length)

    async def update(self, connection: Connection, request: wire.UpdateTableEntries) -> wire.Command:
        versions = await self._tables.update(request.segment, request.entries, request.table_offset)
        return wire.TableEntriesUpdated(request.request_id, versions)

    async def remove(self, connection: Connection, request: wire.RemoveTableKeys) -> wire.Command:
        await self._tables.remove(request.segment, request.keys, request.table_offset)
        return wire.TableKeysRemoved(request.request_id, request.segment)

    async def read(self, connection: Connection, request: wire.ReadTable) -> Encoded | None:
        number, name = request.request_id, request.segment

        async def read(room: int) -> wire.Command:
            found = await self._tables.get(name, request.keys, room, lambda: not connection.unheard)
            return wire.TableRead(number, name, found)

        return await _within(connection, read)

    async def keys(self, connection: Connection, request: wire.ReadTableKeys) -> Encoded | None:
        async def read(room: int) -> wire.Command:
            page = await self._page(request, room)
            keys = [TableKey(one.key, one.version) for one in page.entries]
            behind = keys[-1].key if keys else bytes(request.continuation)
            return wire.TableKeysRead(request.request_id, request.segment, keys, behind)

        return await _within(connection, read)

    async def entries(self, connection: Connection, request: wire.ReadTableEntries) -> Encoded | None:
        async def read(room: int) -> wire.Command:
            page = await self._page(request, room)
            behind = page.entries[-1].key if page.entries else bytes(request.continuation)
            return wire.TableEntriesRead(request.request_id, request.segment, page.entries, behind)

        return await _within(connection, read)

    async def _page(self, request: wire.ReadTableKeys | wire.ReadTableEntries, room: int) -> Page:
        after, first, last = bytes(request.continuation), bytes(request.first), bytes(request.last)
        return await self._tables.entries(request.segment, after, first, last, request.suggested_count, room)

    async def delta(self, connection: Connection, request: wire.ReadTableEntriesDelta) -> Encoded | None:
        number, name = request.request_id, request.segment

        async def read(room: int) -> wire.Command:
            page, behind = await self._tables.changed(name, request.from_position, request.suggested_count, room)
            # should_clear is False: the reader learns of removals from its writers' own entries, and needs no reset.
            return wire.TableEntriesDeltaRead(number, name, page.entries, False, page.last, behind)

        return await _within(connection, read)


async def _within(connection: Connection, read: Callable[[int], Awaitable[wire.Command]]) -> Encoded | None:
    """Encode the answer of ``read``, which gets the bytes it may hold. Waits for the connection's turn and until its
    client has taken earlier answers. None if the client no longer listens."""
    least = _SMALL_PAGE
    while True:
        async with connection.reads.room(max(least, _PAGE_BYTES), least) as room:
            if not room:
                return None
            try:
                return await connection.encoded(await read(room))
            except NotWanted:
                return None
            except MoreRoom as error:
                least = error.size
