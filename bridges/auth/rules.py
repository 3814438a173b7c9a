"""Rules of who may do what, indexed for fast questions: Kafka's ACL model (KIP-11, KIP-290), for every protocol.

A rule allows or denies a principal an operation on resources, from everywhere or from one address. Of all rules about a
resource a denial wins; without one, an operation needs a rule that allows it. Permission to read, write, delete or
alter includes permission to describe, and permission to alter a configuration includes permission to describe it; a
denial includes nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Self

from msgspec import Struct

from bridges.auth import Operation, Principal, Resource, ResourceKind

ANY = "*"
"""Stands for every name of a kind of resources, for every principal's name, and for every address."""

LONGEST = 1000
"""Most characters of a principal or a host."""

_INCLUDED = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_ALLOWING = {asked: frozenset((asked, Operation.ALL, *_INCLUDED.get(asked, ()))) for asked in Operation}
"""Per operation, the operations of rules that allow it."""


class Pattern(Enum):
    """The way in which a rule's name selects resources."""

    LITERAL = "literal"
    """A single resource; ``*`` is all of the kind."""
    PREFIXED = "prefixed"
    """All resources whose names begin with the rule's name."""


class InvalidRule(ValueError):
    """The rule cannot exist; the message says why."""


class Rule(Struct, frozen=True, order=False):
    """A rule about resources of one kind.

    ``principal`` has the form KIND:NAME, with ``*`` for every name of the kind; ``host`` is an address, or ``*``.
    """

    kind: ResourceKind
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    allow: bool

    def check(self) -> Self:
        """Return the rule if it is valid. Raises InvalidRule: rules come from clients, and are kept in memory."""
        if (self.kind is ResourceKind.NODE) == bool(self.name):
            raise InvalidRule("a rule for the node takes no name; every other rule needs one (* for all)")
        of, _, name = self.principal.partition(":")
        if not of or not name or len(self.principal) > LONGEST:
            raise InvalidRule(
                f"principal is to be TYPE:NAME of at most {LONGEST} characters, for instance User:alice or User:*"
            )
        if not self.host or len(self.host) > LONGEST:
            raise InvalidRule(f"host is to be an address, or *, of at most {LONGEST} characters")
        return self

    def is_about(self, name: str) -> bool:
        """Return whether the rule is about the resource of its kind with this name."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (ANY, name)


class RuleFilter(Struct, frozen=True):
    """A filter that accepts the rules that agree with every field that is not None.

    With ``matching``, ``name`` is a resource's name: accepted are the rules about it, whatever their pattern.
    """

    kind: ResourceKind | None = None
    pattern: Pattern | None = None
    name: str | None = None
    matching: bool = False
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    allow: bool | None = None

    def takes(self, rule: Rule) -> bool:
        if self.name is not None and not (rule.is_about(self.name) if self.matching else rule.name == self.name):
            return False
        return (
            self.kind in (None, rule.kind)
            and self.pattern in (None, rule.pattern)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (None, rule.operation)
            and self.allow in (None, rule.allow)
        )


_Place = tuple[ResourceKind, Pattern, str]


class Rules:
    """A set of rules.

    The cost of a question is the number of different lengths of prefixes, plus the rules of the asking principal about
    the resource, however many other rules there are.
    """

    __slots__ = ("_counts", "_lengths", "_of", "_places", "hosts")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._places: dict[_Place, dict[str, dict[Rule, None]]] = {}
        """Rules by resource pattern, then by principal, in the order in which they were added."""
        self._of: dict[tuple[ResourceKind, str], dict[Rule, None]] = {}
        """Rules by kind of resource and principal."""
        self._lengths: dict[ResourceKind, Counter[int]] = {kind: Counter() for kind in ResourceKind}
        """Lengths of prefixed names, and how many prefixed names have each length."""
        self._counts: Counter[ResourceKind] = Counter()
        self.hosts: Counter[str] = Counter()
        """Number of rules per address."""
        for rule in rules:
            self.add(rule)

    def __iter__(self) -> Iterator[Rule]:
        for of in self._of.values():
            yield from of

    def __len__(self) -> int:
        return self._counts.total()

    def __contains__(self, rule: object) -> bool:
        return isinstance(rule, Rule) and rule in self._of.get((rule.kind, rule.principal), ())

    def add(self, rule: Rule) -> None:
        """Add a rule; do nothing if it is in the set."""
        if rule in self:
            return
        self._counts[rule.kind] += 1
        self.hosts[rule.host] += 1
        place = (rule.kind, rule.pattern, rule.name)
        if place not in self._places and rule.pattern is Pattern.PREFIXED:
            self._lengths[rule.kind][len(rule.name)] += 1
        self._places.setdefault(place, {}).setdefault(rule.principal, {})[rule] = None
        self._of.setdefault((rule.kind, rule.principal), {})[rule] = None

    def remove(self, rule: Rule) -> None:
        """Remove a rule. Raises KeyError."""
        of = self._of[rule.kind, rule.principal]
        del of[rule]
        self._counts[rule.kind] -= 1
        self.hosts[rule.host] -= 1
        if not self.hosts[rule.host]:
            del self.hosts[rule.host]
        if not of:
            del self._of[rule.kind, rule.principal]
        place = (rule.kind, rule.pattern, rule.name)
        here = self._places[place]
        del here[rule.principal][rule]
        if not here[rule.principal]:
            del here[rule.principal]
        if here:
            return
        del self._places[place]
        if rule.pattern is Pattern.PREFIXED:
            lengths = self._lengths[rule.kind]
            lengths[len(rule.name)] -= 1
            if not lengths[len(rule.name)]:
                del lengths[len(rule.name)]

    def verdict(self, principal: Principal, operation: Operation, resource: Resource) -> bool | None:
        """Return whether the operation is allowed; None if no rule at all is about the resource."""
        asking = _names(principal)
        allowing = _ALLOWING[operation]
        known = allowed = False
        for here in self._about(resource.kind, resource.name):
            known = True
            for name in asking:
                for rule in here.get(name, ()):
                    if rule.host not in (ANY, principal.host):
                        continue
                    if rule.allow:
                        allowed = allowed or rule.operation in allowing
                    elif rule.operation in (operation, Operation.ALL):
                        return False
        return allowed if known else None

    def verdict_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool | None:
        """Return whether the operation is allowed on at least one possible resource of the kind (KIP-679).

        That is so if a rule allows it that no denying rule covers completely. Return None if no rule at all is about
        the kind.
        """
        allowed: list[Rule] = []
        names: set[str] = set()
        prefixes: set[str] = set()
        for asking in _names(principal):
            for rule in self._of.get((kind, asking), ()):
                if rule.host not in (ANY, principal.host):
                    continue
                if rule.allow:
                    if rule.operation in _ALLOWING[operation]:
                        allowed.append(rule)
                elif rule.operation in (operation, Operation.ALL):
                    (names if rule.pattern is Pattern.LITERAL else prefixes).add(rule.name)
        if ANY in names:
            return False
        lengths = {len(prefix) for prefix in prefixes}
        for rule in allowed:
            of_all = rule.pattern is Pattern.LITERAL and rule.name == ANY
            one = rule.pattern is Pattern.LITERAL and rule.name in names
            if of_all or not (one or any(rule.name[:length] in prefixes for length in lengths)):
                return True
        return False if self._counts[kind] else None

    def _about(self, kind: ResourceKind, name: str) -> Iterator[dict[str, dict[Rule, None]]]:
        places = self._places
        for place in ((kind, Pattern.LITERAL, name), (kind, Pattern.LITERAL, ANY)):
            if place in places:
                yield places[place]
        for length in self._lengths[kind]:
            if length <= len(name) and (found := places.get((kind, Pattern.PREFIXED, name[:length]))) is not None:
                yield found


def _names(principal: Principal) -> tuple[str, str]:
    """Return the names under which rules know a principal."""
    return (str(principal), f"{principal.kind}:{ANY}")
