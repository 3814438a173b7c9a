"""Endpoints, and clients of nodes, that are kept from one task to the next.

Spark's workers are forked processes that run one task after the other, each with objects unpickled anew: what lies in a
module is all that survives between them. So this module has state, as nothing else does: the endpoints of this process,
by address and options, which are told apart from those of the process that it was forked from.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bridges.node.memory import keep_buffers
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.node_client import NodeClient, NodeOptions
from spark_pipeline.endpoints.base import Endpoint, endpoint

_Key = tuple[str, tuple[tuple[str, str], ...]]
_MOST = 16
"""Endpoints of one process: a worker serves few queries at a time."""
_FROZEN_AT = 3
"""The task from which on a worker's modules are all imported."""


class Pool:
    """The endpoints of one process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: dict[_Key, Endpoint] = {}
        self._clients: dict[tuple[NodeOptions, str], NodeClient] = {}
        self._tasks = 0

    @contextmanager
    def use(self, url: str, options: Mapping[str, str]) -> Iterator[Endpoint]:
        """An endpoint that is this caller's until the end of the block, and is closed if it failed in there."""
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
        """A client of this process, which runs one task at a time; those of another ``use`` are others."""
        self._look_where()
        if (options, use) not in self._clients:
            self._clients[options, use] = NodeClient(options)
        return self._clients[options, use]

    def close(self) -> None:
        """Close the endpoints that are idle."""
        idle, self._idle = self._idle, {}
        for one in idle.values():
            one.close()

    def begin_task(self, *, freeze: bool) -> None:
        """Call at the start of each task of a worker.

        The first has the allocator keep large buffers: fetches and columns are megabytes each, and each would be paid
        for with new pages otherwise. With ``freeze`` the objects of imported modules are left out of collections from
        the third task on: Spark's workers collect after every task, which took 18 to 47 ms of each
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
        """Begin anew in a process that was forked: the sockets are those of the other one."""
        if self._pid != os.getpid():
            self._pid, self._idle, self._clients, self._tasks = os.getpid(), {}, {}, 0


POOL = Pool()
"""Of this process."""
