"""What a node makes of what the database says."""

from __future__ import annotations

from msgspec.structs import replace

from bridges.cluster.keeper import Keeper
from bridges.cluster.members import Member, State
from bridges.cluster.slots import Slot
from bridges.cluster.tables import Look

ONE, TWO = Member(1, 1, State.UP), Member(2, 2, State.UP)


def slots(*owners: int, epoch: int = 5) -> tuple[Slot, ...]:
    return tuple(Slot(owner, epoch) for owner in owners)


def test_a_counter_that_stands_still_is_suspected_after_a_lease() -> None:
    keeper = Keeper(1)
    for step in range(5):
        keeper.take_in(Look(1, (replace(ONE, beats=step), TWO), slots(1, 2)), step / 2, step / 2)
        assert keeper.is_suspected(2) == (step == 4)
    assert [member.start for member in keeper.to_end()] == [2]
    keeper.take_in(Look(1, (ONE, replace(TWO, beats=1)), None), 2.5, 2.5)
    assert keeper.to_end() == []


def test_a_node_that_ended_without_leaving_is_missed_until_it_is_back() -> None:
    keeper = Keeper(1)
    three = Member(3, 3, State.UP)
    keeper.take_in(Look(1, (ONE, TWO, three), slots(1, 2)), 0.0, 0.0)
    keeper.take_in(Look(1, (ONE, TWO, replace(three, state=State.LEAVING)), None), 1.0, 1.0)
    keeper.take_in(Look(1, (ONE,), None), 2.0, 2.0)
    assert keeper.missing == {2: 2.0}, "the other has left"
    assert keeper.unowned == 1
    keeper.take_in(Look(1, (ONE, Member(4, 2, State.JOINING)), None), 3.0, 3.0)
    assert keeper.missing == {}


def test_one_whose_process_has_ended_is_suspected_at_once() -> None:
    keeper = Keeper(1)
    for step in range(3):
        assert keeper.doubtful() == []
        keeper.take_in(Look(1, (replace(ONE, beats=step), TWO), slots(1, 2)), step / 2, step / 2)
    assert keeper.doubtful() == [TWO], "two heartbeats are missing"
    assert keeper.to_end() == []
    keeper.past(TWO)
    assert keeper.to_end() == [TWO]
    assert keeper.doubtful() == [], "there is nothing more to find out"
    keeper.take_in(Look(1, (ONE, replace(TWO, beats=1)), None), 1.5, 1.5)
    assert keeper.to_end() == [], "it was not so"
    keeper.past(TWO)
    assert keeper.to_end() == [], "that was found before it counted on"
    ending = replace(TWO, state=State.ENDING, by=3)
    for step in range(4, 9):
        keeper.take_in(Look(1, (ONE, ending), None), step / 2, step / 2)
        assert keeper.doubtful() == [], "somebody goes on without it"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    keeper = Keeper(1)
    keeper.take_in(Look(1, (ONE, TWO), slots(1, 2)), 0.0, 0.0)
    keeper.take_in(Look(1, (ONE, TWO), None), 60.0, 60.0)
    assert not keeper.is_suspected(2)
    # Nor that in which a question was on its way: it may have been answered at its end.
    for _ in range(10):
        keeper.take_in(Look(1, (ONE, TWO), None), 60.0, 70.0)
    assert not keeper.is_suspected(2)


def test_older_answers_change_nothing() -> None:
    keeper = Keeper(1)
    assert keeper.take_in(Look(3, (ONE, TWO), slots(1, 2)), 0, 0).gained == [0]
    keeper.take_in(Look(2, (ONE,), slots(1, 1, epoch=4)), 0, 0)
    assert keeper.acting == {0: 5}
    news = keeper.take_in(Look(4, (ONE, TWO), slots(2, 1, epoch=6)), 0, 0)
    assert (news.gained, news.lost, keeper.acting) == ([1], [0], {1: 6})


def test_what_was_perhaps_given_away_is_not_acted_for_before_its_epoch_is_raised() -> None:
    keeper = Keeper(1)
    keeper.take_in(Look(1, (ONE, TWO), slots(1, 1)), 0, 0)
    keeper.begin_giving([0])
    keeper.take_in(Look(2, (ONE, TWO), slots(1, 1)), 0, 0)
    assert (keeper.acting, keeper.unsettled()) == ({1: 5}, [0])
    assert keeper.raised(0, None).gained == []
    assert keeper.raised(0, 9).gained == [0]
    # An answer from before that does not take it back.
    keeper.take_in(Look(3, (ONE, TWO), slots(1, 1)), 0, 0)
    assert keeper.acting == {0: 9, 1: 5}
    keeper.begin_giving([1])
    keeper.take_in(Look(4, (ONE, TWO), (Slot(1, 9), Slot(2, 10))), 0, 0)
    assert (keeper.acting, keeper.unsettled()) == ({0: 9}, [])


def test_a_slot_that_comes_back_in_a_higher_epoch_is_lost_and_gained() -> None:
    keeper = Keeper(1)
    keeper.take_in(Look(1, (ONE,), slots(1)), 0, 0)
    news = keeper.take_in(Look(2, (ONE,), slots(1, epoch=7)), 0, 0)
    assert (news.gained, news.lost) == ([0], [0])


def test_one_who_was_ended_acts_for_nothing() -> None:
    for members in ((TWO,), (replace(ONE, state=State.ENDING, by=2), TWO)):
        keeper = Keeper(1)
        keeper.take_in(Look(1, (ONE, TWO), slots(1, 2)), 0, 0)
        assert keeper.take_in(Look(2, members, slots(2, 2, epoch=8)), 0, 0).lost == [0]
        assert keeper.ended
        assert keeper.take_in(Look(3, (ONE, TWO), slots(1, 1, epoch=9)), 0, 0).gained == []
        assert (keeper.acting, keeper.to_end(), keeper.to_give()) == ({}, [], [])


def test_slots_are_given_to_those_who_should_have_them() -> None:
    keeper = Keeper(1)
    keeper.take_in(Look(1, (ONE, TWO), slots(1, 1, 1, 2)), 0, 0)
    assert [(move.slot, move.to) for move in keeper.to_give()] == [(0, 2)]
    assert keeper.owner(3) == TWO
    keeper.take_in(Look(1, (ONE, replace(TWO, state=State.JOINING)), None), 0, 0)
    assert keeper.owner(3) is None  # clients are told of who serves
    keeper.take_in(Look(2, (replace(ONE, state=State.LEAVING), TWO), None), 0, 0)
    assert sorted((move.slot, move.to) for move in keeper.to_give()) == [(0, 2), (1, 2), (2, 2)]


def test_who_takes_over_in_the_place_of_one_that_may_not() -> None:
    keeper = Keeper(2)
    three, four = Member(3, 3, State.UP, server_id=33), Member(4, 4, State.LEAVING, server_id=44)
    keeper.take_in(Look(1, (replace(ONE, server_id=11), TWO, three, four), slots(1, 2)), 0, 0)
    assert keeper.instead(11) == 1, "it has the log"
    assert keeper.instead(99) == 3, "nobody's: the next one"
    assert keeper.instead(44) == 3, "who leaves takes nothing over"
    keeper.take_in(Look(2, (replace(ONE, server_id=11), TWO), None), 0, 0)
    assert keeper.instead(99) == 1
    keeper.take_in(Look(3, (TWO,), None), 0, 0)
    assert keeper.instead(99) == 2
