"""A process-wide pool of endpoints and node clients, kept from one task to the next.

Spark's workers are forked processes that run one task after the other, each with newly unpickled objects: only a
module's state survives between tasks. So this module has state, unlike all others: the endpoints of this process, by
address and options. A forked process does not use those of its parent.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bridges.node.process.memory import keep_buffers
from spark_pipeline.core.client.node_client import NodeClient, NodeOptions
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.endpoints.base import Endpoint, endpoint

_Key = tuple[str, tuple[tuple[str, str], ...]]
_MOST = 16
"""Most idle endpoints of one process: a worker serves few queries at a time."""
_FROZEN_AT = 3
"""Number of the task by which a worker has imported all its modules."""


class Pool:
    """The endpoints and clients of one process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: dict[_Key, Endpoint] = {}
        self._clients: dict[tuple[NodeOptions, str], NodeClient] = {}
        self._tasks = 0

    @contextmanager
    def use(self, url: str, options: Mapping[str, str]) -> Iterator[Endpoint]:
        """Lend an endpoint for the block; it is closed if the block raises PipelineError."""
        self._look_where()
        key = (url, tuple(sorted(options.items())))
        found = self._idle.pop(key, None) or endpoint(url, options)
        try:
            yield found
        except PipelineError:
            found.close()
            raise
        self._idle[key] = found
        while len(self._idle) > _MOST:
            self._idle.pop(next(iter(self._idle))).close()

    def client(self, options: NodeOptions, use: str = "") -> NodeClient:
        """Return this process's client for a ``use``; the process runs one task at a time."""
        self._look_where()
        if (options, use) not in self._clients:
            self._clients[options, use] = NodeClient(options)
        return self._clients[options, use]

    def close(self) -> None:
        """Close the idle endpoints."""
        idle, self._idle = self._idle, {}
        for one in idle.values():
            one.close()

    def begin_task(self, *, freeze: bool) -> None:
        """Prepare the process for a task; call it at the start of each task of a worker.

        The first call makes the allocator keep large buffers: fetches and columns are megabytes each, and would
        otherwise each be paid for with new pages. With ``freeze`` the garbage collector skips the objects of imported
        modules from the third task on: Spark's workers collect after every task, which took 18 to 47 ms of each
        (docs/protocols/spark.md, "Workers").
        """
        self._look_where()
        self._tasks += 1
        if self._tasks == 1:
            keep_buffers()
        if freeze and self._tasks == _FROZEN_AT:
            gc.collect()
            gc.freeze()

    def _look_where(self) -> None:
        """Empty the pool in a forked process: the sockets belong to its parent."""
        if self._pid != os.getpid():
            self._pid, self._idle, self._clients, self._tasks = os.getpid(), {}, {}, 0


POOL = Pool()
"""The pool of this process."""
