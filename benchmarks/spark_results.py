"""What `benchmarks/spark.py` found: written whenever there is more, so that nothing is lost by what comes later."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.probe import Machine, on_machine

_SENTENCE = 300
BULK = "bulk copy"
_BEATS = ("triggerExecution", "p90", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement; ``rows`` in ``seconds``, and the CPU seconds of the session (or the copier) and the server."""

    what: str
    size: int
    contender: str
    rows: int
    seconds: float
    client_cpu: float
    server_cpu: float

    @property
    def place(self) -> tuple[str, int]:
        return self.what, self.size

    @property
    def megabytes(self) -> float:
        """Of values."""
        return self.rows * self.size / 1e6


@dataclass(slots=True)
class Results:
    """All of it; ``stem`` is the path of both files without their endings, ``about`` the machine when it began."""

    stem: Path
    about: Machine
    facts: Mapping[str, Any]
    words: str
    runs: list[Run] = field(default_factory=list)
    beats: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Keep a measurement, and print it."""
        self.runs.append(run)
        speed = f"{run.rows / run.seconds / 1000:10,.0f} krows/s {run.megabytes / run.seconds:8,.0f} MB/s"
        used = f"CPU {run.client_cpu / run.rows * 1e6:6.2f} + {run.server_cpu / run.rows * 1e6:5.2f} us a row"
        print(f"{time.strftime('%T')} {speed}  {used}  {run.contender}: {run.what}, {run.size} B", flush=True)

    def add_beats(self, name: str, told: Mapping[str, Sequence[int]]) -> None:
        """Keep the times of micro-batches, in ms by the names of Spark's progress."""
        medians = {part: statistics.median(ms) for part, ms in told.items()}
        medians["p90"] = statistics.quantiles(told["triggerExecution"], n=10)[-1]
        self.beats[name] = medians
        print(f"{time.strftime('%T')} {medians['triggerExecution']:10,.0f} ms a micro-batch  {name}: {medians}")

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """What fails in the block is told, and costs no other measurement. Written at its end."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - told in the results; an hour of others would be lost with it
            sentence = f"{what}: {type(error).__name__}: {error}"
            self.failures.append(" ".join(sentence.split())[:_SENTENCE])
            print(f"{time.strftime('%T')} FAILED {sentence}", flush=True)
        self.write()

    def write(self) -> None:
        """Both files, whole or as they were."""
        content = {
            "machine": self.about.measured(),
            **self.facts,
            "runs": [asdict(run) for run in self.runs],
            "beats": self.beats,
            "failures": self.failures,
        }
        for suffix, text in ((".json", json.dumps(content, indent=1) + "\n"), (".md", self.text())):
            partial = self.stem.with_suffix(".partial")
            partial.write_text(text)
            os.replace(partial, self.stem.with_suffix(suffix))

    def text(self) -> str:
        """Medians of everything, in Markdown."""
        parts = [on_machine(self.about.measured()), self.words, self._table(), self._copies(), self._micro_batches()]
        if self.failures:
            parts.append("What failed:\n\n" + "\n".join(f"* {sentence}" for sentence in self.failures))
        return "\n\n".join(part for part in parts if part) + "\n"

    def _of(self, place: tuple[str, int], name: str) -> list[Run]:
        return [run for run in self.runs if (run.place, run.contender) == (place, name)]

    def _table(self) -> str:
        runs = [run for run in self.runs if run.what != BULK]
        if not runs:
            return ""
        names = list(dict.fromkeys(run.contender for run in runs))
        heads = ["", "bytes", *(f"{name}, krows/s" for name in names), *(f"{name}, CPU us a row" for name in names)]
        lines = [_line(heads), "|" + "---|" * len(heads)]
        for place in dict.fromkeys(run.place for run in runs):
            found = [self._of(place, name) for name in names]
            speeds = [_median(some, lambda run: run.rows / run.seconds / 1000) for some in found]
            used = [_both(some, lambda run, cpu: cpu / run.rows * 1e6) for some in found]
            lines.append(_line([place[0], str(place[1]), *speeds, *used]))
        return "\n".join([*lines, "", "CPU is of the session and of the server."])

    def _copies(self) -> str:
        runs = [run for run in self.runs if run.what == BULK]
        if not runs:
            return ""
        speeds = ["krows/s", "MB/s", "MB a CPU second of the copier", "CPU us a row"]
        heads = ["bulk copy from Apache Kafka", "bytes", *speeds]
        lines = [_line(heads), "|" + "---|" * len(heads)]
        for size, name in dict.fromkeys((run.size, run.contender) for run in runs):
            found = self._of((BULK, size), name)
            cells = [
                _median(found, lambda run: run.rows / run.seconds / 1000),
                _median(found, lambda run: run.megabytes / run.seconds),
                _median(found, lambda run: run.megabytes / max(run.client_cpu, 1e-3)),
                _both(found, lambda run, cpu: cpu / run.rows * 1e6),
            ]
            lines.append(_line([name, str(size), *cells]))
        return "\n".join([*lines, "", "MB are of values; CPU is of the copier and of both servers."])

    def _micro_batches(self) -> str:
        if not self.beats:
            return ""
        lines = [_line(["micro-batch, ms", *_BEATS]), "|" + "---|" * (len(_BEATS) + 1)]
        for name, medians in self.beats.items():
            lines.append(_line([name, *(f"{medians[part]:.0f}" if part in medians else "" for part in _BEATS)]))
        return "\n".join(lines)


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
    if not runs:
        return ""
    found = statistics.median(map(value, runs))
    return f"{found:,.0f}"


def _both(runs: Sequence[Run], value: Callable[[Run, float], float]) -> str:
    """Of the client and of the server."""
    if not runs:
        return ""
    sides = (
        statistics.median(value(run, run.client_cpu) for run in runs),
        statistics.median(value(run, run.server_cpu) for run in runs),
    )
    return " + ".join(f"{side:.2f}" for side in sides)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
