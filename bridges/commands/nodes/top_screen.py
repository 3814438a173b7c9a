"""The screen of ``anabranch top``."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bridges.commands.common import escape
from bridges.commands.nodes.top_figures import Figures, Flow

_LATE_S = 0.1
"""Seconds of a stall that users notice."""
_FLOW = ("IN rec/s", "IN B/s", "OUT rec/s", "OUT B/s")
_HEAD_LINES = 10
"""Lines that are not topics or groups: the summary, and heads and blank lines of tables."""


def screen(seen: Figures, node: str, lines: int) -> RenderableType:
    """Return all figures, in about ``lines`` lines."""
    nodes = len(seen.nodes) + 2 if seen.nodes else 0
    room = max(2, lines - _HEAD_LINES - len(seen.protocols) - nodes)
    topics = min(len(seen.topics), max(1, room - min(len(seen.groups), room // 3)))
    groups = min(len(seen.groups), max(1, room - topics))
    return Stack(
        _summary(seen, node),
        *((Text(), _nodes(seen)) if seen.nodes else ()),
        Text(),
        _protocols(seen),
        Text(),
        _topics(seen, topics),
        Text(),
        _groups(seen, groups),
    )


def _summary(seen: Figures, node: str) -> RenderableType:
    first = Text.assemble(
        (node, "bold"), f"  {seen.topic_count} topics, {seen.partition_count} partitions, {seen.group_count} groups"
    )
    if seen.nodes:
        first.append(f", {len(seen.nodes)} nodes")
    if seen.unheard:
        first.append(f", {seen.unheard} do not answer", "yellow")
    memory = Text(f"cpu {seen.cpu:.0%}  memory {size(seen.resident_bytes)}")
    memory.append(f", connections hold {size(seen.held_bytes)} of {size(seen.budget_bytes)}")
    if seen.waiting:
        memory.append(f", {seen.waiting} wait for room", "yellow")
    second = Text(f"log {size(seen.log_bytes)}, {size(seen.free_bytes)} free  {seen.flushes:.0f} flushes/s")
    if seen.flushes:
        second.append(f" of {seen.flush_s * 1000:.2f} ms")
    stall = f"  loop late by {seen.stall_s * 1000:.0f} ms at most" if seen.stall_s else "  loop never late"
    second.append(stall, "yellow" if seen.stall_s >= _LATE_S else "")
    if seen.denials:
        second.append(f"  {seen.denials:.1f} denials/s", "yellow")
    if seen.is_full:
        second.append("  THE DISK IS FULL: APPENDS ARE REFUSED", "bold red")
    return Stack(first, memory, second)


def _table(heads: Iterable[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True, overflow="ellipsis")
    return table


def _nodes(seen: Figures) -> Table:
    table = _table(("NODE", "CLIENTS", "CPU", "MEMORY", "LATE", *_FLOW))
    for one in seen.nodes:
        late = Text(f"{one.stall_s * 1000:.0f} ms", "yellow" if one.stall_s >= _LATE_S else "")
        cells = (str(one.connections), f"{one.cpu:.0%}", size(one.resident_bytes), late)
        table.add_row(one.name, *cells, *_cells(one.flow))
    return table


def _cells(flow: Flow) -> tuple[str, str, str, str]:
    return count(flow.records_in), size(flow.bytes_in), count(flow.records_out), size(flow.bytes_out)


def _protocols(seen: Figures) -> Table:
    table = _table(("PROTOCOL", "CLIENTS", "REQ/s", "ERR/s", *_FLOW))
    for one in seen.protocols:
        errors = Text(count(one.errors), "yellow" if one.errors else "")
        table.add_row(one.name, str(one.connections), count(one.requests), errors, *_cells(one.flow))
    return table


def _topics(seen: Figures, most: int) -> Table:
    more = len(seen.topics) - most
    table = _table((f"TOPIC{_more(more)}", *_FLOW))
    for one in seen.topics[:most]:
        table.add_row(escape(one.name), *_cells(one.flow))
    return table


def _groups(seen: Figures, most: int) -> Table:
    more = len(seen.groups) - most
    table = _table((f"GROUP{_more(more)}", "BEHIND", "FOR", "TREND/s", "CAUGHT UP IN"))
    for one in seen.groups[:most]:
        trend = Text(f"{'+' if one.trend > 0 else ''}{count(one.trend)}", "yellow" if one.trend > 0 else "")
        late = duration(one.late) if one.late else "-"
        table.add_row(escape(one.name), count(one.lag), late, trend, caught_up(one.lag, one.trend))
    return table


def _more(number: int) -> str:
    return f" (and {number} more)" if number > 0 else ""


def caught_up(lag: float, trend: float) -> str:
    """Return how long a lag of ``lag`` records lasts at a growth of ``trend`` records per second, as text."""
    if not lag:
        return "now"
    if trend >= 0:
        return "-"
    return duration(lag / -trend)


def duration(seconds: float) -> str:
    """Return seconds as text: ``90`` is ``1.5m``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds:.0f}s"


def count(number: float) -> str:
    """Return a number as text: ``1234567`` is ``1.23M``."""
    return _short(number, 1000, ("", "k", "M", "G", "T"))


def size(number: float) -> str:
    """Return bytes as text: ``1048576`` is ``1.00 MiB``."""
    return _short(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _short(number: float, step: int, units: tuple[str, ...]) -> str:
    place = 0
    while abs(number) >= step and place < len(units) - 1:
        number /= step
        place += 1
    whole = not place and number == int(number)
    return f"{number:.0f}{units[place]}" if whole or abs(number) >= 100 else f"{number:.3g}{units[place]}"
