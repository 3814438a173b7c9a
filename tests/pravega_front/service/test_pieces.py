"""What is committed in one piece is told apart by appends, a bounded number of them."""

from __future__ import annotations

from pravega_front.service.pieces import MOST_CLAIMS, Piece


def test_of_many_small_appends_neighbours_are_taken_together() -> None:
    piece = Piece()
    for number in range(3 * MOST_CLAIMS + 1):
        piece.add((b"x" * 9,), [(1 + number % 2, 9)])
        assert len(piece.claims) <= MOST_CLAIMS
    count = 3 * MOST_CLAIMS + 1
    assert (piece.size, len(piece.parts)) == (9 * count, count)
    assert piece.events == sum(events for events, _ in piece.claims) == sum(1 + number % 2 for number in range(count))
    assert sum(size for _, size in piece.claims) == piece.size


def test_of_few_each_is_known_by_itself() -> None:
    piece = Piece()
    piece.add((b"12345678901234567",), [(1, 9), (2, 8)])
    piece.add((b"123456789",), [(7, 9)])
    assert piece.claims == [(1, 9), (2, 8), (7, 9)]
    assert (piece.events, piece.size) == (10, 26)
