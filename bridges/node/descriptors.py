"""File descriptors of the process: connections may use them up to a bound, so that the store always finds one.

Without descriptors a listener cannot take a connection, which is a nuisance, but neither can the store open a file,
which ends the node. So the bounds on connections of all listeners together leave some descriptors free.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from bridges.node.config import Settings
    from bridges.node.setting import Section

RESERVED = 512
"""Descriptors that no connection uses: segments, indexes, the database, libraries, connections to other servers."""
_LEAST = 8
"""Connections that every listener may have, however few descriptors there are."""


def raise_limit() -> int:
    """Let the process have as many descriptors as the system allows it; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def share(wanted: Mapping[str, int], descriptors: int) -> dict[str, int]:
    """Connections by listener that fit into ``descriptors`` with some left: what is wanted, or the same part of it."""
    room = max(0, descriptors - RESERVED)
    total = sum(wanted.values())
    if total <= room:
        return dict(wanted)
    return {name: min(number, max(_LEAST, number * room // total)) for name, number in wanted.items()}


def fit(settings: Settings, descriptors: int) -> tuple[Settings, str | None]:
    """The settings with bounds on connections that fit, and a sentence for the operator if any had to be lowered."""
    sbp_listeners = sum(name.startswith("sbp-") for name in settings.listen) or 2
    bounds = [(front, name) for front in settings.fronts for name in front.connection_bounds]
    wanted = {
        **{f"{front.name}.{name}": getattr(settings.of(front), name) for front, name in bounds},
        "sbp.max_connections": settings.sbp.max_connections * sbp_listeners,
        "limits.http_connections": settings.limits.http_connections,
    }
    given = share(wanted, descriptors)
    if given == wanted:
        return settings, None
    given["sbp.max_connections"] = max(_LEAST, given["sbp.max_connections"] // sbp_listeners)
    sections: dict[str, Section] = {}
    for front in settings.fronts:
        section = settings.of(front)
        if section is not None and front.connection_bounds:
            lowered = {name: given[f"{front.name}.{name}"] for name in front.connection_bounds}
            sections[front.name] = replace(section, **lowered)
    fitting = replace(
        settings,
        sbp=replace(settings.sbp, max_connections=given["sbp.max_connections"]),
        limits=replace(settings.limits, http_connections=given["limits.http_connections"]),
        **sections,
    )
    told = ", ".join(f"{name} = {number}" for name, number in given.items())
    return fitting, f"the system allows {descriptors} file descriptors, too few for what is set; now {told}"
