"""How long connections are kept open whose segment cannot be had."""

from __future__ import annotations

from pravega_front.server import SlowCloses


def test_each_close_comes_later_until_the_segment_was_left_alone() -> None:
    closes, now, delays = SlowCloses(), 100.0, []
    for _ in range(9):
        delays.append(closes.delay("s", 2.0, now))
        now += delays[-1] + 0.001  # a client that comes back at once
    assert delays == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert closes.delay("other", 2.0, now) == 0
    assert closes.delay("s", 2.0, now + 10) == 0


def test_what_is_remembered_of_segments_is_bounded() -> None:
    closes = SlowCloses()
    for number in range(3000):
        closes.delay(str(number), 2.0, 100.0)
    assert len(closes.known) == 1000
    assert closes.delay("2999", 2.0, 100.0) == 0.05
