"""kill -9 at every step in which aborted ranges leave memory: none is ever taken for committed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.bridges.log.aborted_lives import live
from tests.lives import hear_life

STEPS = 20
"""About as many as a life takes."""
LIVES = 2 * STEPS + 1


def run(path: Path, number: int, kill_at: int | None, opening: bool) -> tuple[list[tuple[Any, ...]], int | None]:
    """What a life told, and how its process ended."""
    return hear_life(live, str(path), number, kill_at, opening)


def test_a_node_that_is_killed_at_every_step_of_saving_aborted_ranges_knows_them_all(tmp_path: Path) -> None:
    committed: list[bytes] = []
    aborted = kills = opened = 0
    for number in range(LIVES):
        # Of every third one also the steps of opening count, in which it reads what had no snapshot.
        heard, code = run(tmp_path, number, None if number == LIVES - 1 else 1 + number % STEPS, number % 3 == 0)
        if heard:
            opened += 1
            assert heard[0] == ("found", committed, aborted), "what was acknowledged, all of it and nothing else"
        committed += [one[1] for one in heard if one[0] == "committed"]
        aborted += sum(one[0] == "aborting" for one in heard)
        assert code in (0, -signal.SIGKILL), heard
        kills += code != 0
    assert code == 0
    assert kills > LIVES // 2
    assert LIVES // 2 < opened < LIVES, "some died while they opened the log"
    assert aborted > 2 * LIVES
