"""Whose quota binds a client, and what makes none."""

from __future__ import annotations

import math

import pytest

from bridges.auth.quotas import DEFAULT, Entity, QuotaError, QuotaKey, QuotaRules, check, entity_of, key_of, parts_of

PRODUCE = QuotaKey.PRODUCE
PLACES = (
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u"),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "c"),
    Entity(None, DEFAULT),
)
"""In Kafka's order of precedence (ClientQuotaCallback's documentation)."""


def test_the_most_particular_quota_binds() -> None:
    rules = QuotaRules()
    for number, entity in enumerate(PLACES):
        rules.put(entity, PRODUCE, number + 1)
    for number, entity in enumerate(PLACES):
        assert rules.decides(PRODUCE, "u", "c") == entity
        assert rules.value(PRODUCE, entity) == number + 1
        rules.put(entity, PRODUCE, None)
    assert rules.decides(PRODUCE, "u", "c") is None
    assert len(rules) == 0
    assert PRODUCE not in rules
    assert not list(rules.entities())


def test_each_key_is_decided_by_itself() -> None:
    rules = QuotaRules()
    rules.put(Entity("u", "c"), QuotaKey.FETCH, 1)
    rules.put(Entity("u"), PRODUCE, 2)
    assert rules.decides(PRODUCE, "u", "c") == Entity("u")
    assert rules.decides(QuotaKey.FETCH, "u", "c") == Entity("u", "c")
    assert rules.decides(QuotaKey.REQUEST, "u", "c") is None
    assert rules.decides(PRODUCE, "v", "c") is None
    assert rules.find_limits(Entity("u")) == {PRODUCE: 2}


def test_an_address_has_its_own_or_the_default() -> None:
    rules = QuotaRules()
    key = QuotaKey.CONNECTION
    assert rules.decides_at(key, "10.0.0.1") is None
    rules.put(Entity(ip=DEFAULT), key, 1)
    rules.put(Entity(ip="10.0.0.1"), key, 2)
    assert rules.decides_at(key, "10.0.0.1") == Entity(ip="10.0.0.1")
    assert rules.decides_at(key, "10.0.0.2") == Entity(ip=DEFAULT)


@pytest.mark.parametrize(
    "parts",
    [
        {"user": "u"},
        {"user": None},
        {"user": "u", "client-id": None},
        {"client-id": "c"},
        {"ip": "10.0.0.1"},
        {"ip": None},
    ],
)
def test_an_entity_says_again_what_it_was_made_of(parts: dict[str, str | None]) -> None:
    assert parts_of(entity_of(parts)) == parts


def test_addresses_are_written_in_one_way() -> None:
    assert entity_of({"ip": "2001:DB8:0::1"}) == Entity(ip="2001:db8::1")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "a quota is of"),
        ({"group": "g"}, "no kind of entity 'group'"),
        ({"ip": "10.0.0.1", "user": "u"}, "Invalid quota entity combination: addresses cannot be combined"),
        ({"user": ""}, "1 to 255"),
        ({"client-id": "c" * 256}, "1 to 255"),
        ({"ip": "here"}, "'here' is not a valid IP address"),
    ],
)
def test_what_is_no_entity(parts: dict[str, str | None], words: str) -> None:
    with pytest.raises(QuotaError, match=words):
        entity_of(parts)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1.5])
def test_what_is_no_rate(value: float) -> None:
    with pytest.raises(QuotaError, match="above 0"):
        check(Entity("u"), "producer_byte_rate", value)


def test_a_percentage_may_be_a_part_of_one() -> None:
    assert check(Entity("u"), "request_percentage", 0.5) == (QuotaKey.REQUEST, 0.5)
    assert check(Entity("u"), "controller_mutation_rate", 0.5) == (QuotaKey.MUTATION, 0.5)


@pytest.mark.parametrize(
    ("entity", "key"),
    [
        (Entity("u"), "connection_creation_rate"),
        (Entity(ip="10.0.0.1"), "producer_byte_rate"),
        (Entity(ip="10.0.0.1"), "controller_mutation_rate"),
        (Entity("u"), "no_such_rate"),
    ],
)
def test_what_an_entity_cannot_have(entity: Entity, key: str) -> None:
    with pytest.raises(QuotaError, match="have no"):
        key_of(entity, key)
