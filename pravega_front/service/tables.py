"""Commands about table segments (reference/pravega.md, section 3.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bridges.catalog.sql import Database
from pravega_front.service.table_store import (
    BadVersion,
    NoSuchKey,
    OtherLength,
    TableExists,
    TableMissing,
    TableNotEmpty,
    TableRefused,
    TableStore,
)
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import TableKey

if TYPE_CHECKING:
    from pravega_front.server import SegmentStore
    from pravega_front.session import Connection


def register(store: SegmentStore, db: Database) -> None:
    """Have these commands answered."""
    tables = _Tables(TableStore(db, store.settings.table_bytes, store.settings.table_page))
    handlers: dict[type[wire.Command], Callable[[Any], Awaitable[wire.Command]]] = {
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
    handler: Callable[[Any], Awaitable[wire.Command]],
) -> Callable[[Connection, Any], Awaitable[wire.Command]]:
    async def answer(connection: Connection, request: Any) -> wire.Command:
        number, name = request.request_id, request.segment
        try:
            return await handler(request)
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
        except TableRefused as error:
            return wire.ErrorMessage(number, name, str(error), 0)

    return answer


class _Tables:
    def __init__(self, tables: TableStore) -> None:
        self._tables = tables

    async def create(self, request: wire.CreateTableSegment) -> wire.Command:
        await self._tables.create(request.segment, max(0, request.key_length))
        return wire.SegmentCreated(request.request_id, request.segment)

    async def delete(self, request: wire.DeleteTableSegment) -> wire.Command:
        await self._tables.delete(request.segment, request.must_be_empty)
        return wire.SegmentDeleted(request.request_id, request.segment)

    async def info(self, request: wire.GetTableSegmentInfo) -> wire.Command:
        info = await self._tables.info(request.segment)
        return wire.TableSegmentInfo(request.request_id, request.segment, 0, info.length, info.entries, info.key_length)

    async def update(self, request: wire.UpdateTableEntries) -> wire.Command:
        versions = await self._tables.update(request.segment, request.entries, request.table_offset)
        return wire.TableEntriesUpdated(request.request_id, versions)

    async def remove(self, request: wire.RemoveTableKeys) -> wire.Command:
        await self._tables.remove(request.segment, request.keys, request.table_offset)
        return wire.TableKeysRemoved(request.request_id, request.segment)

    async def read(self, request: wire.ReadTable) -> wire.Command:
        return wire.TableRead(
            request.request_id, request.segment, await self._tables.get(request.segment, request.keys)
        )

    async def keys(self, request: wire.ReadTableKeys) -> wire.Command:
        after, first, last = bytes(request.continuation), bytes(request.first), bytes(request.last)
        page = await self._tables.entries(request.segment, after, first, last, request.suggested_count)
        keys = [TableKey(one.key, one.version) for one in page.entries]
        return wire.TableKeysRead(request.request_id, request.segment, keys, keys[-1].key if keys else after)

    async def entries(self, request: wire.ReadTableEntries) -> wire.Command:
        after, first, last = bytes(request.continuation), bytes(request.first), bytes(request.last)
        page = await self._tables.entries(request.segment, after, first, last, request.suggested_count)
        behind = page.entries[-1].key if page.entries else after
        return wire.TableEntriesRead(request.request_id, request.segment, page.entries, behind)

    async def delta(self, request: wire.ReadTableEntriesDelta) -> wire.Command:
        page, position = await self._tables.changed(request.segment, request.from_position, request.suggested_count)
        # Nothing has to be cleared: what a reader has, and was removed since, it is told by its writers' own entries.
        return wire.TableEntriesDeltaRead(request.request_id, request.segment, page.entries, False, page.last, position)
