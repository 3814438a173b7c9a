"""Own time of functions of a running program, put around them from outside: what ``benchmarks.profile`` measures with.

What a probed function spends in other probed functions is theirs. The probes' own cost is measured first and taken off.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from statistics import median
from typing import Any

_CALIBRATED_BY = 2_000
_CALIBRATIONS = 20


@dataclass(frozen=True, slots=True)
class Step:
    """One row: ``where`` are functions, ``package.module:Class.method`` or ``package.module:function``, of which all
    take part in it. With ``makes`` they give functions, and those are meant. ``waits``: the kernel may put it to sleep,
    so its CPU time is measured apart (which costs a system call). ``seldom``: not every such request comes this way."""

    title: str
    where: tuple[str, ...]
    waits: bool = False
    makes: bool = False
    seldom: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one step, for each request: calls, microseconds of CPU, microseconds without it."""

    title: str
    calls: float
    cpu_us: float
    waits_us: float


class _Stack(threading.local):
    """Nanoseconds that the probed functions under way have spent in others, innermost last."""

    def __init__(self) -> None:
        self.frames: list[int] = []


class Probes:
    """Install before anything is made of the classes that are probed: methods are often kept bound."""

    def __init__(self) -> None:
        self._stack = _Stack()
        # By step, of each of its functions: what every call took, and of it CPU, where that is measured apart.
        self._times: dict[str, list[tuple[array[int], array[int]]]] = {}
        self._outside = 0
        """Nanoseconds of a probe that its caller would be charged with."""
        self._within = 0
        """Nanoseconds of a probe that count as its function's."""
        self._calibrate()

    def install(self, step: Step) -> None:
        """Raises ImportError or AttributeError for what is not there."""
        for place in step.where:
            wall, cpu = times = array("q"), array("q")
            self._times.setdefault(step.title, []).append(times)
            module, _, path = place.partition(":")
            owner: Any = import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            found = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
            if step.makes:
                setattr(owner, name, self._around_made(found, wall))
            elif step.waits:
                setattr(owner, name, self._around_waiting(found, wall, cpu))
            else:
                setattr(owner, name, self._around(found, wall))

    def start(self) -> None:
        """Count from now on."""
        for functions in self._times.values():
            for wall, cpu in functions:
                del wall[:], cpu[:]

    def costs(self, requests: int) -> list[Cost]:
        """What was counted since :meth:`start`, by step, in the order of installation: medians of each function's
        calls, since others use the machine as well."""
        found = []
        for title, functions in self._times.items():
            calls = used = waited = 0.0
            for wall, cpu in functions:
                number = len(wall) / requests
                spent = _median(wall)
                busy = _median(cpu) if len(cpu) else spent
                calls += number
                used += number * busy / 1000
                waited += number * max(0.0, spent - busy) / 1000
            found.append(Cost(title, calls, used, waited))
        return found

    def _around(self, function: Callable[..., Any], wall: array[int]) -> Callable[..., Any]:
        stack, clock = self._stack, time.perf_counter_ns

        @wraps(function)
        def probed(*args: Any, **named: Any) -> Any:
            frames = stack.frames
            frames.append(0)
            began = clock()
            try:
                return function(*args, **named)
            finally:
                took = clock() - began
                wall.append(took - frames.pop() - self._within)
                if frames:
                    frames[-1] += took + self._outside

        return probed

    def _around_waiting(self, function: Callable[..., Any], wall: array[int], cpu: array[int]) -> Callable[..., Any]:
        """Around what calls nothing that is probed."""
        stack, clock, cpu_clock = self._stack, time.perf_counter_ns, time.thread_time_ns

        @wraps(function)
        def probed(*args: Any, **named: Any) -> Any:
            entered = clock()
            used = cpu_clock()
            began = clock()
            try:
                return function(*args, **named)
            finally:
                took = clock() - began
                cpu.append(cpu_clock() - used)
                wall.append(took)
                frames = stack.frames
                if frames:
                    frames[-1] += clock() - entered + self._outside

        return probed

    def _around_made(self, make: Callable[..., Any], wall: array[int]) -> Callable[..., Any]:
        @wraps(make)
        def making(*args: Any, **named: Any) -> Any:
            return self._around(make(*args, **named), wall)

        return making

    def _calibrate(self) -> None:
        times = array("q")
        probed = self._around(_nothing, times)
        bare = min(self._loop_of(_nothing) for _ in range(_CALIBRATIONS))
        whole = min(self._loop_of(probed) for _ in range(_CALIBRATIONS))
        within = _median(times)
        # What the call itself costs without a probe stays with the caller, whose it is.
        self._within, self._outside = int(within), int(max(0.0, whole - within - bare))

    @staticmethod
    def _loop_of(function: Callable[[], None]) -> float:
        began = time.perf_counter_ns()
        for _ in range(_CALIBRATED_BY):
            function()
        return (time.perf_counter_ns() - began) / _CALIBRATED_BY


def _nothing() -> None:
    pass


def _median(times: array[int]) -> float:
    return median(times) if times else 0.0
