"""The ways of requests through a node, step by step: which functions ``benchmarks.profile`` measures, and in what order
they come. docs/design.md has the same ways as a picture.

A step's functions are probed where they are *used*: a name that a module imported from another is found in the former.
"""

from __future__ import annotations

from benchmarks.probes import Step

_ASKING = Step(
    "the loop asks the kernel what there is to do", ("anabranch_kit.run.cycle:_Selector.select",), waits=True
)

_LOOP = (
    _ASKING,
    Step(
        "receive from the socket",
        ("asyncio.selector_events:_SelectorSocketTransport._read_ready__get_buffer",),
    ),
    Step("count, queue and start requests", ("anabranch_kit.net.connection:Connection.buffer_updated",)),
    Step("cut the stream into frames", ("anabranch_kit.net.framing:Framer.received",)),
    Step("request header, context", ("kafka_front.session:Connection._start",)),
    Step("decode the message", ("kafka_front.wire.generate:decoder",), makes=True),
)
"""How every request comes in."""

_RESPONSE = (
    Step("answer, metrics", ("kafka_front.session:Connection.answer",)),
    Step("encode the response", ("kafka_front.wire.codec:ServerCodec.response",)),
    Step(
        "responses in order",
        ("bridges.net.connection:Connection._fill", "anabranch_kit.net.connection:Connection._flush"),
    ),
    Step("outbox", ("anabranch_kit.net.outbox:Outbox.send",)),
)
"""How every response goes out."""

_ANSWER = (
    *_RESPONSE,
    Step("send to the socket", ("asyncio.selector_events:_SelectorSocketTransport.write",), waits=True),
)
"""The same for a short one."""

_ADMITTING = (
    "sbp_back.range_server.local_appends:LocalAppends._flush",
    "sbp_back.range_server.local_appends:LocalAppends._append",
    "sbp_back.range_server.appends:Appends.admit",
)
_TAKING = (
    "sbp_back.range_server.store.store:Store.append_gathered",
    "sbp_back.range_server.store.store:Store.write_gathered",
)
"""Functions of the range server and its store that all entries of a cycle pass together."""

_WRITTEN = (
    Step("write (and flush) the group", ("anabranch_kit.disk.files:Files.write",), waits=True),
    Step(
        "from the log's thread to the loop (fsync)",
        (
            "sbp_back.range_server.store.writing.inbox:Inbox.put",
            "sbp_back.range_server.store.writing.inbox:Inbox._wakened",
        ),
        seldom=True,
    ),
    Step("store: index, callbacks", ("sbp_back.range_server.store.store:Store._complete",)),
    Step(
        "range server: commit, what may be shown",
        ("sbp_back.range_server.appends:AppendCall.stored", "sbp_back.range_server.local_appends:LocalCall.settle"),
    ),
)
"""How every group of entries is written, and its writers hear of it."""

PRODUCE = (
    *_LOOP,
    Step("Produce: the request and its partitions", ("kafka_front.service.produce.requests:Produce.handle",)),
    Step("check the batch: header, checksum, claims", ("kafka_front.service.produce.requests:accept",)),
    Step(
        "partition's log: ledger, offset, stamp",
        (
            "bridges.log.partition.append_path:AppendPath.append",
            "bridges.log.partition.append_path:AppendPath._hand_over",
        ),
    ),
    Step("stream's writer: entry", ("sbp_back.client.stream_writer:StreamWriter.append",)),
    Step(
        "range server: what the cycle brought, windows",
        ("sbp_back.range_server.local_appends:LocalAppends.push", *_ADMITTING),
    ),
    Step("store: takes entries, checksums", _TAKING),
    Step(
        "log: a group",
        (
            "sbp_back.range_server.store.writing.wal_writer:WalWriter.write_here",
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._begin",
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._add_append",
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._flush",
        ),
    ),
    *_WRITTEN,
    Step(
        "stream's writer: answers",
        ("sbp_back.client.replica:Replica.settle", "sbp_back.client.stream_writer:StreamWriter.progressed"),
    ),
    Step("partition's log: index, tail, high watermark", ("bridges.log.partition.append_path:AppendPath._stored",)),
    Step(
        "Produce: the partition's answer, the whole response",
        (
            "kafka_front.service.produce.requests:_Append.__call__",
            "kafka_front.service.produce.requests:Produce.finished",
        ),
    ),
    *_ANSWER,
)

APPEND = (
    _ASKING,
    Step("who appends: is told, appends again", ("benchmarks.sbp:Appender._done", "benchmarks.sbp:Appender.go")),
    Step(
        "stream's writer: entry",
        ("sbp_back.client.stream_writer:StreamWriter.append", "sbp_back.client.stream_writer:pack_entry"),
    ),
    Step("replica", ("sbp_back.client.replica:Replica.send",)),
    Step("range server: what the cycle brought", ("sbp_back.range_server.local_appends:LocalAppends.push",)),
    Step("range server: windows", _ADMITTING),
    Step("checksums of the entries", ("sbp_back.range_server.appends:crc32",)),
    Step("store: takes entries", _TAKING),
    Step(
        "log: a group",
        (
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._begin",
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._add_append",
            "sbp_back.range_server.store.writing.wal_writer:WalWriter._flush",
        ),
    ),
    *_WRITTEN,
    Step("replicas: settled", ("sbp_back.client.replica:Replica.settle",)),
    Step("stream's writer: answers", ("sbp_back.client.stream_writer:StreamWriter.progressed",)),
)
"""Writers of streams in this process, without a front: ``benchmarks.sbp``'s own."""

_READING = "kafka_front.service.fetch.reading:Reading"

FETCH = (
    *_LOOP,
    Step("Fetch: the request and its session", ("kafka_front.service.fetch.requests:Fetch.handle",)),
    Step(
        "its partitions: who may read, which log",
        (
            "kafka_front.service.fetch.operation:FetchOperation.start",
            "kafka_front.service.fetch.partitions:Partitions.resolve",
        ),
    ),
    Step("is there enough to answer", ("kafka_front.service.fetch.operation:FetchOperation._has_enough",)),
    Step("which partitions have something", (f"{_READING}._find_readable",)),
    Step("what was read ahead", (f"{_READING}._read", "kafka_front.service.fetch.read_ahead:ReadAhead.take")),
    Step(
        "partitions' logs: from memory, or planned",
        ("bridges.log.gathering:_Gathering.start", "sbp_back.client.gathering:Gathering.add"),
    ),
    Step(
        "store: the plan, in the order of the log",
        (
            "sbp_back.range_server.store.gather:Gather.add",
            "sbp_back.range_server.store.gather:Gathers.run",
            "sbp_back.range_server.store.gather:Gather.divide",
        ),
    ),
    Step("store: steps", ("sbp_back.range_server.store.gather:Gather.step",)),
    Step("read from the page cache", ("anabranch_kit.disk.files:Files.scatter_cached",), waits=True),
    Step("check what was read: checksums, entries", ("sbp_back.range_server.store.gather:Gather._check",)),
    Step(
        "batches of each partition",
        ("sbp_back.range_server.store.gather:Gathers._answer", "bridges.log.gathering:_Gathering._gathered"),
    ),
    Step("keep it for the next request", ("kafka_front.service.fetch.read_ahead:ReadAhead._read",)),
    Step("batches' heads, offsets, aborted transactions", (f"{_READING}._serve", f"{_READING}._take")),
    Step("the whole response", (f"{_READING}._finish",)),
    Step("what to read ahead", (f"{_READING}._read_on", "kafka_front.service.fetch.read_ahead:ReadAhead.read")),
    *_RESPONSE,
    Step("send to the socket, past the transport", ("anabranch_kit.net.outbox:Outbox._offer",), waits=True),
    Step(
        "send the rest when there is room",
        (
            "asyncio.selector_events:_SelectorSocketTransport.write",
            "asyncio.selector_events:_SelectorSocketTransport._write_ready",
        ),
        seldom=True,
    ),
)
