"""kill -9 at every step of a change of partitions, against a model of what a topic then is."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bridges.catalog.topics.lineage import KeyRange
from tests.bridges.catalog.lineage_lives import FIRST, Plan, as_told, live
from tests.lives import hear_life


@dataclass(slots=True)
class Model:
    """A topic as a list of (number, keys, epoch made in, epoch sealed in), and what is known of its records."""

    partitions: list[tuple[int, KeyRange, int, int | None]]
    epoch: int = 0
    stored: dict[int, dict[int, str]] = field(default_factory=dict)
    tried: dict[int, set[str]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    under_way: tuple[list[int], list[KeyRange]] | None = None

    def change(self) -> None:
        """What is under way has happened, all of it."""
        assert self.under_way is not None
        seal, make = self.under_way
        self.under_way = None
        self.epoch += 1
        self.partitions = [
            (number, keys, made, self.epoch if number in seal else sealed)
            for number, keys, made, sealed in self.partitions
        ]
        self.partitions += [(len(self.partitions) + n, keys, self.epoch, None) for n, keys in enumerate(make)]

    def children(self, number: int) -> tuple[int, ...]:
        _, keys, _, sealed = self.partitions[number]
        born = [one for one in self.partitions if sealed is not None and one[2] == sealed]
        return tuple(one[0] for one in born if one[1].low < keys.high and keys.low < one[1].high)


def run(path: Path, plan: Plan) -> tuple[list[tuple[Any, ...]], int | None]:
    """What a life told, and how its process ended."""
    return hear_life(live, str(path), plan)


def check(model: Model, heard: list[tuple[Any, ...]]) -> None:
    """Compare what a life found with the model, which goes on with what the life did."""
    for what, *told in heard:
        if what == "found":
            epoch, partitions = told
            if epoch == model.epoch + 1:
                model.change()
            model.under_way = None  # it has happened, or never will
            assert as_told(partitions) == model.partitions
            assert epoch == model.epoch
        elif what == "settled":
            partitions, unowned = told
            assert unowned == []
            for one in partitions:
                assert (one.end is None) == one.is_active
                assert one.children == model.children(one.index)
                assert all(one.index in model.children(parent) for parent in one.parents)
                if one.end is not None:
                    assert model.ends.setdefault(one.index, one.end) == one.end
            active = sorted((one.keys for one in partitions if one.is_active), key=lambda keys: keys.low)
            assert active[0].low == 0
            assert active[-1].high == FIRST[-1].high
            assert all(one.high == other.low for one, other in pairwise(active))
        elif what == "holds":
            number, high_watermark, final, records = told
            # All that was acknowledged is there; what else is there was tried, and nothing is there twice.
            assert model.stored.get(number, {}).items() <= records.items()
            assert set(records.values()) <= model.tried.get(number, set())
            assert sorted(records) == list(range(high_watermark))
            assert len(set(records.values())) == len(records)
            assert final == model.ends.get(number)
            if final is not None:
                assert final == high_watermark
            model.stored[number] = records
        elif what == "trying":
            number, value = told
            model.tried.setdefault(number, set()).add(value)
        elif what == "stored":
            number, offset, value = told
            assert number not in model.ends
            assert model.stored.setdefault(number, {}).setdefault(offset, value) == value
        elif what == "refused":
            number, children, message = told
            if model.partitions[number][3] is None:
                model.change()  # whoever waits for the change is told a little later
            assert model.partitions[number][3] is not None
            assert children == model.children(number)
            assert all(str(child) in message for child in children)
        elif what == "changing":
            model.under_way = told[0], told[1]
        elif what == "changed":
            epoch, partitions = told
            if model.under_way is not None:
                model.change()
            assert (epoch, as_told(partitions)) == (model.epoch, model.partitions)
        elif what == "ended":
            number, high_watermark, final = told
            assert high_watermark == final == len(model.stored[number])
            model.ends[number] = final


def test_a_change_killed_at_every_step_happens_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    model = Model([(number, keys, 0, None) for number, keys in enumerate(FIRST)])
    life, fates = 0, [0, 0]
    while True:
        life += 1
        epoch = model.epoch
        heard, code = run(tmp_path, Plan(life, kill_at=life))
        check(model, heard)
        if heard[-1] == ("end",):
            break
        assert code == -signal.SIGKILL, heard[-1]
        fates[model.epoch > epoch] += 1
    steps = next(one[1] for one in heard if one[0] == "steps")
    assert steps < life  # how many there are varies by one: two ends may be written down in one commit
    assert min(fates) > 3, "kills before the change and behind it"
    heard, code = run(tmp_path, Plan(0))
    assert (heard[-1], code) == (("end",), 0)
    check(model, heard)
    assert len(model.ends) == len([one for one in model.partitions if one[3] is not None])
