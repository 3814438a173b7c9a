"""Checks of the database that a cluster's nodes share: that it answers, how fast, and that its clock agrees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import LiteralString

from bridges.extras import remedy
from bridges.node.finding import Finding, fine, warning, wrong

_ABOUT = "database"
_PATIENCE_S = 5
_SLOW_S = 0.010
_APART_S = 1.0
"""Ages of data, leases of transactions and times of commits are written by different nodes, by their own clocks."""
_TIME: LiteralString = "SELECT extract(epoch FROM clock_timestamp())::float8"


def check(url: str, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Check the database of a cluster.

    ``url``: the setting cluster.database, empty for a single node; ``clock``: returns seconds since 1970.
    """
    if not url:
        return
    try:
        import psycopg
    except ImportError as error:
        yield wrong(_ABOUT, f"cluster.database needs the Python package {error.name}", remedy(error) or "install it")
        return
    times: list[tuple[float, float]] = []
    try:
        with psycopg.connect(url, connect_timeout=_PATIENCE_S, autocommit=True) as db:
            for _ in range(3):
                begun = clock()
                (theirs,) = db.execute(_TIME).fetchone() or (0.0,)
                ended = clock()
                times.append((ended - begun, theirs - (begun + ended) / 2))
    except psycopg.Error as error:
        told = str(error).strip().splitlines()
        yield wrong(_ABOUT, f"it cannot be used: {told[0] if told else error}", "start it, or correct cluster.database")
        return
    took, apart = min(times)
    told_time = f"it answers in {took * 1000:.1f} ms"
    if took > _SLOW_S:
        yield warning(_ABOUT, f"{told_time}: what changes topics and groups waits for it", "put it nearer to the nodes")
    else:
        yield fine(_ABOUT, told_time)
    if abs(apart) > _APART_S:
        yield warning(
            "clock",
            f"it differs by {abs(apart):.0f} s from the database's: nodes must agree on what is old",
            "run chrony or systemd-timesyncd on all machines of the cluster",
        )
