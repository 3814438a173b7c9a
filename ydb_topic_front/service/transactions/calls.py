"""The query service, as far as transactions of topics need it, and UpdateOffsetsInTransaction.

No table is served, so a query is one SELECT of a literal, as SDKs' examples send it. All calls of a session are
answered by the node that coordinates it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.auth import Operation, Resource, ResourceKind
from bridges.errors import LogError
from bridges.net.grpc_server import GrpcRefusal
from ydb_topic_front.failures import translate_error
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall, GrpcStream
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.transactions.coordinator import Session

_CreateSessionResponse = messages["Ydb.Query.CreateSessionResponse"]
_BeginTransactionResponse = messages["Ydb.Query.BeginTransactionResponse"]
_SessionState = messages["Ydb.Query.SessionState"]
_ResponsePart = messages["Ydb.Query.ExecuteQueryResponsePart"]
_Type = messages["Ydb.Type"]

_LITERAL = re.compile(
    r"""\s*select\s+(?:(?P<number>[-+]?\d{1,10})|'(?P<text>[^'\\]*)'|"(?P<quoted>[^"\\]*)")"""
    r"""(?:\s+as\s+`?(?P<name>\w+)`?)?\s*;?\s*""",
    re.IGNORECASE,
)
_INT32 = range(-(2**31), 2**31)


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    calls = _Calls(service)
    forwarding = service.forwarding
    registry.call("Query.CreateSession", calls.create_session)
    for name, answer in (
        ("DeleteSession", calls.delete_session),
        ("BeginTransaction", calls.begin),
        ("CommitTransaction", calls.commit),
        ("RollbackTransaction", calls.rollback),
    ):
        key = f"Query.{name}"
        registry.call(key, answer, forwarding.led_call(key, calls.finding(key)))
    update = "UpdateOffsetsInTransaction"
    registry.call(update, calls.update_offsets, forwarding.led_call(update, calls.finding(update)))
    for name, serve, last in (
        ("AttachSession", calls.attach, _SessionState),
        ("ExecuteQuery", calls.execute, _ResponsePart),
    ):
        key = f"Query.{name}"
        registry.stream(key, forwarding.led(key, serve, calls.finding_stream(key), partial(_last, last)))


def _last(kind: Any, error: YdbError) -> bytes:
    message = kind()
    error.tell(message)
    raw: bytes = message.SerializeToString()
    return raw


def literal(text: str, result: Any) -> None:
    """Fill a result set with the literal that a query selects. Raises YdbError for any other query."""
    found = _LITERAL.fullmatch(text)
    number = None if found is None or found["number"] is None else int(found["number"])
    if found is None or (number is not None and number not in _INT32):
        message = "no tables are served here: a query may be one SELECT of a number or text, such as SELECT 1"
        raise YdbError(Status.UNSUPPORTED, message)
    value = result.rows.add().items.add()
    if number is None:
        kind = _Type.STRING
        value.bytes_value = (found["text"] if found["quoted"] is None else found["quoted"]).encode()
    else:
        kind, value.int32_value = _Type.INT32, number
    result.columns.add(name=found["name"] or "column0").type.type_id = kind


class _Calls:
    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._transactions = service.transactions

    # --- the session's node -----------------------------------------------------------------------------------------

    def finding(self, key: str) -> Callable[[bytes], Callable[[], int] | None]:
        """Return a function that finds the slot of a call's session."""
        kind = messages[METHODS[key].request]

        def find(raw: bytes) -> Callable[[], int] | None:
            try:
                request = kind.FromString(raw)
            except DecodeError:
                return None
            return self._transactions.finding(request.tx.session if hasattr(request, "tx") else request.session_id)

        return find

    def finding_stream(self, key: str) -> Callable[[bytes, GrpcStream], Any]:
        """Return the same as :meth:`finding`, for a stream."""
        find = self.finding(key)

        async def find_slot(raw: bytes, stream: GrpcStream) -> Callable[[], int] | None:
            return find(raw)

        return find_slot

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def create_session(self, request: Any, call: GrpcCall) -> Any:
        session_id = self._transactions.begin_session()
        return _CreateSessionResponse(session_id=session_id, node_id=self._service.node_id)

    async def delete_session(self, request: Any, call: GrpcCall) -> None:
        """End a session. One that is gone, because its client ended the stream first, is no error."""
        try:
            self._transactions.end_session(self._transactions.session(request.session_id))
        except YdbError as error:
            if error.status is not Status.BAD_SESSION:
                raise

    async def attach(self, stream: GrpcStream) -> None:
        """Keep a session alive as long as its stream."""
        try:
            request = messages["Ydb.Query.AttachSessionRequest"].FromString(await stream.read() or b"")
            session = self._transactions.session(request.session_id)
        except (YdbError, DecodeError) as error:
            refused = error if isinstance(error, YdbError) else bad_request("this is no AttachSessionRequest")
            await stream.write(_last(_SessionState, refused))
            return
        session.attached = True
        stream.when_draining(session.closed.set)
        try:
            await stream.write(_SessionState(status=Status.SUCCESS).SerializeToString())
            async with asyncio.TaskGroup() as group:
                gone = group.create_task(stream.await_gone())
                gone.add_done_callback(lambda _: session.closed.set())
                await session.closed.wait()
                gone.cancel()
            if stream.draining:
                leaving = _SessionState(status=Status.SUCCESS)
                leaving.node_shutdown.SetInParent()
                await stream.write(leaving.SerializeToString())
        finally:
            self._transactions.end_session(session)

    # --- transactions -----------------------------------------------------------------------------------------------

    async def _begin(self, session: Session, settings: Any) -> str:
        mode = settings.WhichOneof("tx_mode")
        if mode is None:
            raise bad_request("Failed to begin transaction: tx mode was not set")
        if mode in ("online_read_only", "stale_read_only"):
            raise bad_request(f"open transactions not supported for transaction mode: {mode}")
        return await self._transactions.begin_transaction(session)

    async def begin(self, request: Any, call: GrpcCall) -> Any:
        session = self._transactions.session(request.session_id)
        if not request.HasField("tx_settings"):
            raise bad_request("Empty tx_settings.")
        response = _BeginTransactionResponse()
        response.tx_meta.id = await self._begin(session, request.tx_settings)
        return response

    async def commit(self, request: Any, call: GrpcCall) -> None:
        session = self._transactions.session(request.session_id)
        await self._transactions.commit(session, _named(request.tx_id))

    async def rollback(self, request: Any, call: GrpcCall) -> None:
        session = self._transactions.session(request.session_id)
        self._transactions.rollback(session, _named(request.tx_id))

    async def execute(self, stream: GrpcStream) -> None:
        """Answer a query, as one part."""
        try:
            raw = await stream.read() or b""
            part = await self._execute(messages["Ydb.Query.ExecuteQueryRequest"].FromString(raw))
            part.status = Status.SUCCESS
        except DecodeError:
            bad_request("this is no ExecuteQueryRequest").tell(part := _ResponsePart())
        except GrpcRefusal:
            raise
        except (YdbError, LogError) as error:
            translate_error(error).tell(part := _ResponsePart())
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._service.node.barrier.caught("ExecuteQuery", error)
            YdbError(Status.INTERNAL_ERROR, "an unexpected error").tell(part := _ResponsePart())
        await stream.write(part.SerializeToString())

    async def _execute(self, request: Any) -> Any:
        session = self._transactions.session(request.session_id)
        part = _ResponsePart()
        literal(request.query_content.text, part.result_set)
        control = request.tx_control
        transaction_id = control.tx_id
        if control.WhichOneof("tx_selector") == "begin_tx":
            transaction_id = await self._begin(session, control.begin_tx)
        elif transaction_id:
            self._transactions.find(session, transaction_id)
        if transaction_id and control.commit_tx:
            await self._transactions.commit(session, transaction_id)
        elif transaction_id:
            part.tx_meta.id = transaction_id
        return part

    # --- positions --------------------------------------------------------------------------------------------------

    async def update_offsets(self, request: Any, call: GrpcCall) -> None:
        """Add offsets that a consumer has read to a transaction."""
        service = self._service
        if not request.HasField("tx"):
            raise bad_request("Empty tx.")
        session = self._transactions.session(request.tx.session)
        found = self._transactions.find(session, request.tx.id)
        consumer = request.consumer
        service.require(call, Operation.READ, Resource(ResourceKind.GROUP, consumer))
        ranges = []
        for part in request.topics:
            topic = service.topic_at(call, part.path, Operation.READ)
            if consumer not in service.topics.get_settings(topic.name).consumers:
                raise bad_request(f"Unknown consumer '{consumer}'")
            for one in part.partitions:
                if not 0 <= one.partition_id < len(topic.partitions):
                    raise bad_request(f"topic '{part.path}' has no partition {one.partition_id}")
                place = topic.name, one.partition_id
                ranges += [(place, offsets.start, offsets.end) for offsets in one.partition_offsets]
        self._transactions.add_ranges(found, consumer, ranges)


def _named(transaction_id: str) -> str:
    if not transaction_id:
        raise bad_request("Empty transaction id.")
    return transaction_id
