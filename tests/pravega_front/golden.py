"""Recorded exchanges with Pravega's own segment store (golden.txt)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Exchange:
    """What was sent, and what came back, in order: (">" or "<", frame)."""

    title: str
    frames: list[tuple[str, bytes]] = field(default_factory=list)


def exchanges() -> list[Exchange]:
    """All of them, in the order in which they were recorded on one connection."""
    found: list[Exchange] = []
    for line in (Path(__file__).parent / "golden.txt").read_text().splitlines():
        if line.startswith("## "):
            found.append(Exchange(line[3:]))
        elif line[:2] in ("> ", "< ") and not line.startswith("< ("):
            found[-1].frames.append((line[0], bytes.fromhex(line[2:])))
    return found


FRAMES = list(dict.fromkeys(frame for exchange in exchanges() for _, frame in exchange.frames))
