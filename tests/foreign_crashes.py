"""Crashes inside foreign client libraries. A test that fails with one of them is tried once more, and nothing else is.

Each has a stack, or the words that come with it, from a run of the library by itself: a failure without them is ours
until somebody proves otherwise. A new one is added with its stack, never for "it passes by itself".
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from spark_pipeline.spark.session import NOT_STARTED


class ForeignCrash(NamedTuple):
    """``words``: a pattern of what the library says, which has to be in the report of the failure."""

    library: str
    why: str
    words: str


WHEEL_AT_EXIT = ForeignCrash(
    "pravega_client 0.3.8 (pyo3-asyncio)",
    "a thread of tokio's lets go of an object of Python's while the interpreter ends, with all said and done",
    r"PyGILState_Release: thread state \w+ must be current when releasing[\sE]+Python runtime state: finalizing",
)
"""4 of 39 processes that read one event with `get_segment_slice_async` ended so, 3 with SIGABRT and one with SIGSEGV:

    PyGILState_Release (or meth_dealloc, of <pyo3::gil::GILPool as core::ops::drop::Drop>::drop)
    <pyo3_asyncio::tokio::TokioRuntime as pyo3_asyncio::generic::Runtime>::spawn::{{closure}}
    tokio::runtime::task::core::Core<T,S>::poll
    tokio::runtime::scheduler::multi_thread::worker::Context::run_task
"""
SPARK_START = ForeignCrash(
    "pyspark 4.3.0",
    "a process of Python did not start in the 10 s that Java waits for it, on a busy machine",
    re.escape(NOT_STARTED),
)
"""org.apache.spark.SparkException: Python worker failed to connect back.

    at org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala)
"""
YDB_LOOP = ForeignCrash(
    "grpcio 1.85.1 (below ydb 3.33.2)",
    "a stream whose server had gone never ended, cancelled or not, and stopped the loop of all topic clients",
    r"in _clean_executor\s[\s\S]*in shutdown",
)
"""A client of gRPC alone did the same with a server of gRPC alone that was killed and started again: one of its streams
never ended, after a minute of that. The SDK waits for such a stream's thread on the loop that all topic clients of a
process share (`GrpcWrapperAsyncIO.close`), so none of them does anything any more:

    ThreadPoolExecutor.shutdown (concurrent/futures/thread.py)      _MultiThreadedRendezvous._next (grpc/_channel.py)
    GrpcWrapperAsyncIO._clean_executor                              _SafeSyncIterator.__next__ (ydb/connection.py)
    ReaderStream.create (ydb/_topic_reader/topic_reader_asyncio.py) _WorkItem.run (concurrent/futures/thread.py)
"""
WHEEL_UNCONNECTED = ForeignCrash(
    "pravega_client 0.3.8 (pravega-client 0.3.7)",
    "a writer whose first connection failed is used before it is connected again, and panics",
    r"must have connection[\s\S]*SegmentWriter::write_pending_events",
)
"""The controller names a segment's owner, which is killed before the client's SetupAppend. The client tries that
address eleven times in a minute (`setup_connection`), and puts its wish to reconnect behind the events that wait in the
same channel (`reconnect`). The first of these finds no connection:

    pravega_client::segment::writer::SegmentWriter::write_pending_events::{{closure}}
    pravega_client::segment::reactor::Reactor::run_once::{{closure}}
"""
KNOWN = (WHEEL_AT_EXIT, WHEEL_UNCONNECTED, SPARK_START, YDB_LOOP)
TURNS_S = 5.0
"""So long a loop may take for a turn on a busy machine, unless it waits in YDB's SDK for a stream to end."""


def crash_in(text: str) -> ForeignCrash | None:
    """Return the known crash that a report of a failure tells of."""
    return next((one for one in KNOWN if re.search(one.words, text)), None)


def stack_of_ydb_loop() -> str:
    """Return where the loop that YDB's topic clients of this process share stands still, and have further clients make
    another; an empty string where it turns, or there is none."""
    common: Any = sys.modules.get("ydb._topic_common.common")
    loop = None if common is None else common._shared_event_loop
    if common is None or loop is None:
        return ""
    turned = threading.Event()
    loop.call_soon_threadsafe(turned.set)
    if turned.wait(TURNS_S):
        return ""
    stack = "".join(traceback.format_stack(sys._current_frames()[loop._thread_id]))
    if re.search(YDB_LOOP.words, stack):
        common._shared_event_loop = None
    return stack


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test, and once more if a foreign library has crashed in it, which the summary of warnings tells."""
    if not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [one.longreprtext for one in reports if one.failed]
    crash = crash_in("\n".join([*failed, stack_of_ydb_loop()])) if failed else None
    if crash is not None:
        item.warn(pytest.PytestWarning(f"tried once more: {crash.library} crashed: {crash.why}"))
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for one in reports:
        item.ihook.pytest_runtest_logreport(report=one)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
