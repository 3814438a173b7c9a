"""The process's file descriptors: connections are bounded, so that the store always gets one.

Without descriptors a listener cannot accept a connection, which is a nuisance; but neither can the store open a file,
which ends the node. So the bounds on connections of all listeners together leave some descriptors free.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from bridges.node.settings.config import Settings
    from bridges.node.settings.setting import Section

RESERVED = 512
"""Descriptors that are not for connections of clients: segments, indexes, the database, libraries, other servers."""
_LEAST = 8
"""Connections that every listener may have, however few descriptors there are."""


def raise_limit() -> int:
    """Raise the process's limit of descriptors to the system's maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def share(wanted: Mapping[str, int], descriptors: int) -> dict[str, int]:
    """Return connections by listener that fit into ``descriptors`` with a reserve: all that is wanted, or equal
    fractions.
    """
    room = max(0, descriptors - RESERVED)
    total = sum(wanted.values())
    if total <= room:
        return dict(wanted)
    return {name: min(number, max(_LEAST, number * room // total)) for name, number in wanted.items()}


def fit(settings: Settings, descriptors: int) -> tuple[Settings, str | None]:
    """Return the settings with bounds on connections that fit, and a sentence for the operator if any was lowered."""
    sbp_listeners = sum(name.startswith("sbp-") for name in settings.listen) or 2
    bounds = [(front, name) for front in settings.fronts for name in front.connection_bounds]
    wanted = {
        **{f"{front.name}.{name}": getattr(settings.find_section(front), name) for front, name in bounds},
        "sbp.max_connections": settings.sbp.max_connections * sbp_listeners,
        "limits.http_connections": settings.limits.http_connections,
    }
    given = share(wanted, descriptors)
    if given == wanted:
        return settings, None
    given["sbp.max_connections"] = max(_LEAST, given["sbp.max_connections"] // sbp_listeners)
    sections: dict[str, Section] = {}
    for front in settings.fronts:
        section = settings.find_section(front)
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
