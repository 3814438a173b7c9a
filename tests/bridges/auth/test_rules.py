"""Rules of who may do what, beside a slow reading of Kafka's words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.rule_authorizer import RuleAuthorizer
from bridges.auth.rules import ANY, LONGEST, InvalidRule, Pattern, Rule, RuleFilter, Rules

ALICE, BOB = Principal("User", "alice", "10.0.0.1"), Principal("User", "bob", "10.0.0.2")
TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ASKED = [one for one in Operation if one is not ALL]


def rule(
    name: str = "t",
    operation: Operation = READ,
    principal: str = "User:alice",
    *,
    allow: bool = True,
    host: str = ANY,
    pattern: Pattern = Pattern.LITERAL,
    kind: ResourceKind = TOPIC,
) -> Rule:
    return Rule(kind, pattern, name, principal, host, operation, allow)


def topic(name: str) -> Resource:
    return Resource(TOPIC, name)


@pytest.mark.parametrize(
    ("rules", "asked", "expected"),
    [
        ([], (ALICE, READ, topic("t")), None),
        ([rule()], (ALICE, READ, topic("t")), True),
        ([rule()], (ALICE, WRITE, topic("t")), False),
        ([rule()], (ALICE, DESCRIBE, topic("t")), True),
        ([rule()], (BOB, READ, topic("t")), False),
        ([rule()], (BOB, READ, topic("u")), None),
        ([rule(kind=GROUP)], (ALICE, READ, topic("t")), None),
        ([rule(principal="User:*")], (BOB, READ, topic("t")), True),
        ([rule(principal="Group:*")], (BOB, READ, topic("t")), False),
        ([rule(operation=ALL)], (ALICE, Operation.DELETE, topic("t")), True),
        ([rule(ANY)], (ALICE, READ, topic("anything")), True),
        ([rule("a", pattern=Pattern.PREFIXED)], (ALICE, READ, topic("abc")), True),
        ([rule("a", pattern=Pattern.PREFIXED)], (ALICE, READ, topic("ba")), None),
        ([rule(ANY, pattern=Pattern.PREFIXED)], (ALICE, READ, topic("t")), None),
        ([rule(host="10.0.0.1")], (ALICE, READ, topic("t")), True),
        ([rule(host="10.0.0.9")], (ALICE, READ, topic("t")), False),
        ([rule(), rule(ANY, allow=False, principal="User:*")], (ALICE, READ, topic("t")), False),
        ([rule(), rule(operation=DESCRIBE, allow=False)], (ALICE, READ, topic("t")), True),
        ([rule(), rule(operation=DESCRIBE, allow=False)], (ALICE, DESCRIBE, topic("t")), False),
        ([rule(operation=WRITE, allow=False), rule()], (ALICE, DESCRIBE, topic("t")), True),
        ([rule(), rule(allow=False, host="10.0.0.2")], (ALICE, READ, topic("t")), True),
        ([rule("", Operation.ALTER, kind=ResourceKind.NODE)], (ALICE, Operation.ALTER, NODE), True),
        ([rule("", Operation.ALTER, kind=ResourceKind.NODE)], (BOB, Operation.ALTER, NODE), False),
    ],
)
def test_what_rules_say(rules: list[Rule], asked: tuple[Principal, Operation, Resource], expected: bool | None) -> None:
    assert Rules(rules).verdict(*asked) is expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], None),
        ([rule(operation=WRITE)], True),
        ([rule(operation=READ)], False),
        ([rule(operation=WRITE), rule(operation=WRITE, allow=False)], False),
        ([rule("ab", WRITE), rule("a", WRITE, allow=False, pattern=Pattern.PREFIXED)], False),
        ([rule("a", WRITE, pattern=Pattern.PREFIXED), rule("a", WRITE, allow=False)], True),
        ([rule(ANY, WRITE), rule("a", WRITE, allow=False, pattern=Pattern.PREFIXED)], True),
        ([rule(ANY, WRITE), rule(ANY, ALL, "User:*", allow=False)], False),
    ],
)
def test_what_may_be_done_to_some_resource(rules: list[Rule], expected: bool | None) -> None:
    assert Rules(rules).verdict_any(ALICE, WRITE, TOPIC) is expected


NAMES = st.sampled_from(["", "a", "ab", "abc", "b", ANY])
RULES = st.builds(
    rule,
    NAMES,
    st.sampled_from([READ, WRITE, DESCRIBE, ALL]),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    allow=st.booleans(),
    host=st.sampled_from([ANY, "10.0.0.1"]),
    pattern=st.sampled_from(Pattern),
    kind=st.sampled_from([TOPIC, GROUP]),
)


def expected(rules: set[Rule], who: Principal, operation: Operation, resource: Resource) -> bool | None:
    about = [one for one in rules if one.kind is resource.kind and one.is_about(resource.name)]
    ours = [one for one in about if one.principal in (str(who), "User:*") and one.host in (ANY, who.host)]
    if any(not one.allow and one.operation in (ALL, operation) for one in ours):
        return False
    also = {DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER}}.get(operation, set())
    return any(one.allow and one.operation in {ALL, operation, *also} for one in ours) if about else None


@given(st.lists(RULES), st.lists(RULES))
def test_compiled_rules_answer_as_a_walk_over_all_of_them_does(added: list[Rule], removed: list[Rule]) -> None:
    rules, held = Rules(added), set(added)
    for one in removed:
        if one in rules:
            rules.remove(one)
            held.remove(one)
    assert set(rules) == held
    assert len(rules) == len(held)
    for who in (ALICE, BOB):
        for operation in (READ, WRITE, DESCRIBE):
            for kind in (TOPIC, GROUP):
                for name in ("", "a", "ab", "abcd", "c"):
                    resource = Resource(kind, name)
                    assert rules.verdict(who, operation, resource) is expected(held, who, operation, resource)
    for one in held:
        rules.remove(one)
    assert rules.verdict(ALICE, READ, topic("a")) is None
    assert not len(rules)


@given(RULES, RULES)
def test_a_filter_made_of_a_rule_takes_just_that_one(one: Rule, other: Rule) -> None:
    exact = RuleFilter(one.kind, one.pattern, one.name, False, one.principal, one.host, one.operation, one.allow)
    assert exact.takes(one)
    assert exact.takes(other) == (one == other)
    assert RuleFilter().takes(other)


def test_denials_are_counted_and_a_change_is_seen_at_once() -> None:
    rules, denials = Rules(), []
    authorizer = RuleAuthorizer(rules, frozenset(["User:root"]), otherwise=False, denied=lambda: denials.append(1))
    assert not authorizer.allows(ALICE, READ, topic("t"))
    assert not authorizer.allows(ALICE, DESCRIBE, topic("t"))
    assert authorizer.allows(Principal("User", "root"), READ, topic("t"))
    assert len(denials) == 1, "what may not be seen is left out of lists, and no denial"
    rules.add(rule())
    authorizer.changed()
    assert authorizer.allows(ALICE, READ, topic("t"))
    rules.remove(rule())
    authorizer.changed()
    assert not authorizer.allows(ALICE, READ, topic("t"))


def test_who_may_create_on_the_node_may_create_any_topic() -> None:
    rules = Rules([rule("t", Operation.CREATE, allow=False), rule("", Operation.CREATE, kind=ResourceKind.NODE)])
    authorizer = RuleAuthorizer(rules, frozenset(), otherwise=False)
    assert authorizer.allows(ALICE, Operation.CREATE, topic("t"))
    assert not authorizer.allows(BOB, Operation.CREATE, topic("t"))
    assert not authorizer.allows(ALICE, Operation.CREATE, Resource(GROUP, "g"))


def test_a_question_costs_the_same_however_many_rules_there_are() -> None:
    def seconds(many: int) -> float:
        rules = Rules(rule(f"topic-{number}", principal=f"User:{number % 1000}") for number in range(many))
        best = 1.0
        for _ in range(5):
            began = time.perf_counter()
            for number in range(200):
                rules.verdict(ALICE, READ, topic(f"topic-{number}"))
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(50_000) < 10 * seconds(500)


@pytest.mark.parametrize(
    "wrong",
    [
        rule(""),
        rule(kind=ResourceKind.NODE),
        rule(principal="alice"),
        rule(principal="User:"),
        rule(principal="User:" + "a" * LONGEST),
        rule(host=""),
        rule(host="h" * (LONGEST + 1)),
    ],
)
def test_what_can_be_no_rule_says_why(wrong: Rule) -> None:
    with pytest.raises(InvalidRule):
        wrong.check()
    assert rule(principal="User:" + "a" * (LONGEST - 5), host="h" * LONGEST).check().name == "t"


def test_principals_that_may_do_the_same_have_one_stand_in() -> None:
    rules = Rules([rule(host=ALICE.host), rule("u")])
    asked = RuleAuthorizer(rules, frozenset(), otherwise=False)
    elsewhere, here = ALICE.at("10.0.0.9"), topic("t")
    assert asked.stand_in(ALICE) == ALICE
    assert asked.stand_in(elsewhere) == asked.stand_in(ALICE.at("10.0.0.8")) != asked.stand_in(BOB)
    for one in (ALICE, BOB, elsewhere):
        assert asked.allows(asked.stand_in(one), READ, here) == asked.allows(one, READ, here)
    rules.remove(rule(host=ALICE.host))
    assert asked.stand_in(ALICE) == asked.stand_in(elsewhere)
