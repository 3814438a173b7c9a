"""Commands about table segments (reference/pravega.md, section 3.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from bridges.catalog.sql import Database
from bridges.errors import LogError
from pravega_front.service.table_life import DroppedTables, TableExists, TableMissing, TooManyTables
from pravega_front.service.table_store import (
    BadVersion,
    MoreRoom,
    NoSuchKey,
    OtherLength,
    Page,
    TableNotEmpty,
    TableRefused,
    TableStore,
)
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import TableKey

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.session import Connection

T = TypeVar("T")

_PAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of keys and values of one page."""
_SMALL_PAGE = 64 * 1024
"""What a page has at least, while memory is short, if there is so much."""


def register(store: SegmentStore, db: Database, dropped: DroppedTables) -> None:
    """Have these commands answered."""
    settings = store.settings
    room = store.segments.room_for_tables
    tables = _Tables(TableStore(db, dropped, room, settings.table_bytes, settings.table_page))
    handlers: dict[type[wire.Command], Callable[[Connection, Any], Awaitable[wire.Command]]] = {
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
    for command, handler in handlers.items():
        store.handlers[command] = _answering(handler)


def _answering(
    handler: Callable[[Connection, Any], Awaitable[wire.Command]],
) -> Callable[[Connection, Any], Awaitable[wire.Command]]:
    async def answer(connection: Connection, request: Any) -> wire.Command:
        number, name = request.request_id, request.segment
        try:
            return await handler(connection, request)
        except TableMissing:
            return wire.NoSuchSegment(number, name)
        except TableExists:
            return wire.SegmentAlreadyExists(number, name)
        except TableNotEmpty:
            return wire.TableSegmentNotEmpty(number, name)
        except NoSuchKey:
            return wire.TableKeyDoesNotExist(number, name)
        except BadVersion:
            return wire.TableKeyBadVersion(number, name)
        except OtherLength as error:
            return wire.SegmentIsTruncated(number, name, error.length, "", request.table_offset)
        except TooManyTables as error:
            return wire.ErrorMessage(number, name, str(error))
        except TableRefused as error:
            return wire.ErrorMessage(number, name, str(error), 0)

    return answer


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

    async def read(self, connection: Connection, request: wire.ReadTable) -> wire.Command:
        name, keys = request.segment, request.keys
        entries = await _within(connection, lambda room: self._tables.get(name, keys, room))
        return wire.TableRead(request.request_id, name, entries)

    async def keys(self, connection: Connection, request: wire.ReadTableKeys) -> wire.Command:
        page = await self._page(connection, request)
        keys = [TableKey(one.key, one.version) for one in page.entries]
        behind = keys[-1].key if keys else bytes(request.continuation)
        return wire.TableKeysRead(request.request_id, request.segment, keys, behind)

    async def entries(self, connection: Connection, request: wire.ReadTableEntries) -> wire.Command:
        page = await self._page(connection, request)
        behind = page.entries[-1].key if page.entries else bytes(request.continuation)
        return wire.TableEntriesRead(request.request_id, request.segment, page.entries, behind)

    async def _page(self, connection: Connection, request: wire.ReadTableKeys | wire.ReadTableEntries) -> Page:
        after, first, last = bytes(request.continuation), bytes(request.first), bytes(request.last)
        name, count = request.segment, request.suggested_count
        return await _within(connection, lambda room: self._tables.entries(name, after, first, last, count, room))

    async def delta(self, connection: Connection, request: wire.ReadTableEntriesDelta) -> wire.Command:
        name, start, count = request.segment, request.from_position, request.suggested_count
        page, position = await _within(connection, lambda room: self._tables.changed(name, start, count, room))
        # Nothing has to be cleared: what a reader has, and was removed since, it is told by its writers' own entries.
        return wire.TableEntriesDeltaRead(request.request_id, name, page.entries, False, page.last, position)


async def _within(connection: Connection, read: Callable[[int], Awaitable[T]]) -> T:
    """What ``read`` gives, told how many bytes it may hold; it is the connection's turn, and its client has taken what
    was read before."""
    least = _SMALL_PAGE
    while True:
        async with connection.room_to_read(max(least, _PAGE_BYTES), least) as room:
            if not room:
                raise LogError("the connection has ended")
            try:
                return await read(room)
            except MoreRoom as error:
                least = error.size
