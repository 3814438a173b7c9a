"""Crashes inside foreign client libraries. A test that fails with one of them is tried once more, and nothing else is.

Each has a stack, or the words that come with it, from a run of the library by itself: a failure without them is ours
until somebody proves otherwise. A new one is added with its stack, never for "it passes by itself".
"""

from __future__ import annotations

import re
from typing import NamedTuple

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
KNOWN = (WHEEL_AT_EXIT, SPARK_START)


def crash_in(text: str) -> ForeignCrash | None:
    """Return the known crash that a report of a failure tells of."""
    return next((one for one in KNOWN if re.search(one.words, text)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test, and once more if a foreign library has crashed in it, which the summary of warnings tells."""
    if not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    crash = next((found for one in reports if one.failed and (found := crash_in(one.longreprtext))), None)
    if crash is not None:
        item.warn(pytest.PytestWarning(f"tried once more: {crash.library} crashed: {crash.why}"))
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for one in reports:
        item.ihook.pytest_runtest_logreport(report=one)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
