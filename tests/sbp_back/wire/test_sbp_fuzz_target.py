"""The coverage-guided target of tests/fuzz, driven here by hypothesis and its own seeds."""

from __future__ import annotations

import importlib.util
import random
import tracemalloc
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def _load() -> ModuleType:
    path = Path(__file__).parents[2] / "fuzz" / "fuzz_sbp_frames.py"
    spec = importlib.util.spec_from_file_location("fuzz_sbp_frames", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUZZ = _load()
SEEDS: dict[str, bytes] = FUZZ.seeds()


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_taken(name: str) -> None:
    FUZZ.one_input(SEEDS[name])


@given(st.binary(max_size=200))
def test_noise_raises_nothing_else(data: bytes) -> None:
    FUZZ.one_input(data)


@settings(max_examples=400)
@given(st.sampled_from(sorted(SEEDS)), st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
def test_damaged_seeds_raise_nothing_else(name: str, rng: random.Random, changes: int, response: bool) -> None:
    data = bytearray(SEEDS[name])
    for _ in range(changes):
        # Behind the fixed head, so that most inputs reach the tables and not only the frame reader.
        data[rng.randrange(17, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if response:
        data[0] |= FUZZ.RESPONSES
    FUZZ.one_input(bytes(data))


def test_claimed_lengths_allocate_nothing() -> None:
    tracemalloc.start()
    try:
        for data in SEEDS.values():
            for position in range(17, len(data) - 4):
                FUZZ.one_input(data[:position] + b"\xff\xff\xff\x7f" + data[position + 4 :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
