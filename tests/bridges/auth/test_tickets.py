"""Tickets for the backend: who made them, what they say, when they end, and what nobody can make of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from bridges.auth import Principal
from bridges.auth.private_file import write_private
from bridges.auth.tickets import MOST_STREAMS, KeysOfOthers, TicketOffice
from bridges.auth.tokens import LONGEST_TOKEN, KeysError, TokenError, TokenKeys, load_keys
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.transport.gate import Grant
from tests.kit.clock import Clock

ALICE = Principal("User", "alice")
NOW = 1_700_000_000
DAY = 86_400


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    return load_keys(tmp_path / "keys.json", NOW, DAY, DAY)


def office(keys: TokenKeys, clock: Clock | None = None) -> TicketOffice:
    return TicketOffice(lambda: keys, 60, clock or Clock(NOW))


def refused(office: TicketOffice, ticket: str) -> str:
    """Why it is no good."""
    with pytest.raises(SbpError) as caught:
        office.check(ticket)
    assert caught.value.code == ErrorCode.UNAUTHORIZED
    return caught.value.message


def test_what_tickets_say(keys: TokenKeys) -> None:
    made = office(keys)
    assert made.check(made.for_reader(ALICE, {7, 8})) == Grant(NOW + 60, frozenset({7, 8}))
    assert made.check(made.for_process()) == Grant(NOW + 60, None)
    assert made.check(made.for_reader(ALICE, ())) == Grant(NOW + 60, frozenset())


def test_a_ticket_for_many_streams_is_looked_at(keys: TokenKeys) -> None:
    made = office(keys)
    streams = frozenset(range(2**63 - MOST_STREAMS, 2**63))
    ticket = made.for_reader(Principal("User", "n" * 500), streams)
    assert len(ticket) < LONGEST_TOKEN
    assert made.check(ticket).streams == streams


def test_a_ticket_ends(keys: TokenKeys) -> None:
    clock = Clock(NOW)
    made = office(keys, clock)
    ticket = made.for_reader(ALICE, {7})
    clock.now += 59
    made.check(ticket)
    clock.now += 1
    assert refused(made, ticket) == "the ticket has expired"


def test_others_that_have_the_keys_know_it_and_those_that_have_not_do_not(tmp_path: Path, keys: TokenKeys) -> None:
    ticket = office(keys).for_process()
    assert office(KeysOfOthers(tmp_path / "keys.json").keys).check(ticket).streams is None
    stranger = load_keys(tmp_path / "others.json", NOW, DAY, DAY)
    assert "not made here" in refused(office(stranger), ticket)


def test_a_ticket_that_somebody_has_changed_is_none(keys: TokenKeys) -> None:
    made = office(keys)
    head, content, signature = made.for_reader(ALICE, {7}).split(".")
    claims = json.loads(base64.urlsafe_b64decode(content + "==="))
    for more in ({"streams": [8]}, {"everything": True}, {"exp": NOW + DAY}):
        changed = base64.urlsafe_b64encode(json.dumps(claims | more).encode()).rstrip(b"=").decode()
        assert "signature" in refused(made, f"{head}.{changed}.{signature}")
    for text in ("", "a.b", "....", f"{head}.{content}.", f"{head}.{content}.{signature[:-4]}AAAA", "x" * 100_000):
        refused(made, text)


def test_tokens_are_no_tickets_and_tickets_no_tokens(keys: TokenKeys) -> None:
    """Also where a client may say itself what they claim."""
    made = office(keys)
    token = keys.sign(ALICE, "pipeline", NOW, 60, {"everything": True, "streams": [7]}, None)
    assert "something else" in refused(made, token)
    with pytest.raises(TokenError, match="something else"):
        keys.read(made.for_process(), "pipeline", NOW)


def test_what_says_nothing_lets_nothing(keys: TokenKeys) -> None:
    token = keys.sign(ALICE, "sbp", NOW, 60, {"everything": "yes"}, None)
    assert office(keys).check(token).streams == frozenset()


def test_keys_that_nodes_change_are_read_again(tmp_path: Path, keys: TokenKeys) -> None:
    path = tmp_path / "keys.json"
    others = KeysOfOthers(path)
    before = path.read_bytes()
    newer = load_keys(path, NOW + DAY, DAY, DAY)  # has a successor now, which signs
    ticket = office(newer).for_process()
    assert "not made here" in refused(office(others.keys), ticket)
    others.refresh()
    office(others.keys).check(ticket)
    office(others.keys).check(office(keys).for_process())  # the old one is good until its last token has ended
    written = path.read_bytes()
    for damage in (b"{", b""):
        write_private(path, damage)
        others.refresh()
        office(others.keys).check(ticket)
    path.unlink()
    others.refresh()
    office(others.keys).check(ticket)
    write_private(path, before)
    others.refresh()
    assert "not made here" in refused(office(others.keys), ticket)
    write_private(path, written)
    others.refresh()
    office(others.keys).check(ticket)


def test_keys_of_others_are_neither_made_nor_changed(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"keys\.json"):
        KeysOfOthers(tmp_path / "keys.json")
    assert list(tmp_path.iterdir()) == []
    load_keys(tmp_path / "keys.json", 0, DAY, DAY)  # by now it is due for a successor
    before = (tmp_path / "keys.json").read_bytes()
    KeysOfOthers(tmp_path / "keys.json")
    assert (tmp_path / "keys.json").read_bytes() == before
