"""One bound for the memory that the connections of a process make it hold: requests, unsent responses, reads.

Every connection has an account. What keeps a few of them from holding everything:

* The first ``share`` bytes of an account come out of a reserve which nothing else may use, so that only as many
  accounts as fill the reserve, a thousand by default, can keep the next one from its share.
* What an account holds beyond its share is at most an eighth of what the others leave of the rest. However many take
  as much as they can, a part stays free for the next; the more there are, the less each gets.
* A single request that is larger than that, up to the largest a protocol allows, is admitted when it fits in what is
  free, one such account at a time. For the one that has waited longest up to half of the rest is kept free, so that
  its turn comes. One alone is never too large.

What TLS takes of a connection for as long as it lives, what a node remembers of its traffic, and what is fetched from
an object store for readers, is in no account, since nobody who waits could be given it: it makes the rest smaller, by
three quarters at most, so that work goes on whatever the number of connections.

An account that is refused waits and is told when there is room, the one that needs least first. Nothing is called
from within :meth:`Account.give`: the telling is deferred, and a bounded number are told at a time. What an account is,
as far as it waits; what is not in the table cannot happen:

| state | event | next | what follows |
|---|---|---|---|
| CONTENT | ``wait`` for what its share holds, or while it holds more than that | WAITING | it stands by its need |
| CONTENT | ``wait`` for more than its share holds | QUEUED | the same, and it may claim |
| QUEUED | it is the first, and nobody claims | CLAIMANT | up to half of the rest is kept free for it |
| WAITING, QUEUED, CLAIMANT | it takes or gives bytes | any of these | by its need as it is now |
| WAITING, QUEUED | what it wants fits into its part, and into nobody's who needs less | CONTENT | it is told |
| CLAIMANT | what it wants fits into its part, or as the one large request | TOLD | it is told; room is still kept |
| TOLD | ``wait`` for as much | CLAIMANT | it has asked, and the room was gone |
| TOLD | the next turn of the loop | CONTENT | the first that is QUEUED claims |
| WAITING, QUEUED, CLAIMANT | ``stop_waiting``, ``close`` | CONTENT | likewise, if it claimed |
| CONTENT, TOLD | ``admit`` of more than its part, and nobody else claims or is large | *large* | no other is |
| *large* | it gives so much that what it holds is no more than its part | | another may be |

``wanted`` is 0 in CONTENT and TOLD. The others are in ``_buckets``, QUEUED and CLAIMANT in ``_claims`` as well.
There is one ``_claimant`` (CLAIMANT or TOLD) and one ``_large`` at a time; the large one may wait for more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

_PART = 8
"""An account may hold one part in so many of what the others leave."""
_SHARE = 64 * 1024
_SHARES = 16
"""The reserve has at least so many shares, however small the budget is."""
_TOLD_AT_ONCE = 64
_LEFT_PART = 4
"""TLS leaves one part in so many of the rest."""


class Kind(IntEnum):
    """What memory is held for; each is measured by itself."""

    REQUESTS = 0
    """Requests being received, waiting or in progress, what was appended but is not durable yet included."""
    RESPONSES = 1
    """Answers that a socket has not taken yet."""
    READS = 2
    """Reads under way, whose bytes belong to no answer yet."""
    TLS = 3
    """What connections with TLS take by themselves."""
    HISTORY = 4
    """What a node remembers of its own traffic."""
    OBJECTS = 5
    """What comes from an object store, until it is in the cache on the local disk."""


class MemoryBudget:
    """``total`` bytes, of which a quarter is the reserve. ``defer`` calls a function later: a loop's ``call_soon``."""

    __slots__ = (
        "_buckets",
        "_claimant",
        "_claims",
        "_defer",
        "_large",
        "_rest",
        "_shared",
        "_small",
        "_telling",
        "accounts",
        "by_kind",
        "capacity",
        "refused",
        "reserve",
        "share",
        "total",
        "waiting",
    )

    def __init__(self, total: int, defer: Callable[[Callable[[], None]], object]) -> None:
        self.total = total
        self.reserve = total // 4
        self._rest = self.capacity = total - self.reserve
        """Most bytes that all accounts may hold beyond their shares."""
        self.share = max(1, min(_SHARE, self.reserve // _SHARES))
        self.by_kind = [0] * len(Kind)
        """Bytes held now, by :class:`Kind`."""
        self.accounts = 0
        """Accounts opened and not closed."""
        self.waiting = 0
        """Accounts that wait for room."""
        self.refused = 0
        """How often an account had to be refused."""
        self._defer = defer
        # Held within the accounts' shares, and beyond them.
        self._small = 0
        self._shared = 0
        # By the length of the number of bytes needed; each in the order of arrival.
        self._buckets: dict[int, dict[Account, None]] = {}
        self._large: Account | None = None
        # Those that need more than their part and hold nothing much; the first of them is kept room for.
        self._claims: dict[Account, None] = {}
        self._claimant: Account | None = None
        self._telling = False

    @property
    def held(self) -> int:
        """Bytes held by all accounts."""
        return self._small + self._shared

    @property
    def _usable(self) -> int:
        return self.reserve + self.capacity

    @property
    def scarce(self) -> bool:
        """So much is held that what comes unasked should come in small pieces."""
        return self._small + self._shared > self.capacity

    def account(self, on_room: Callable[[], None]) -> Account:
        """A new account. ``on_room`` is called once after each :meth:`Account.wait`, when there is room."""
        self.accounts += 1
        return Account(self, on_room)

    def attach(self, size: int, kind: Kind = Kind.TLS) -> None:
        """Something takes ``size`` bytes for as long as it lives, in no account, as a connection does by TLS; negative
        when it is gone."""
        self.by_kind[kind] += size
        self.capacity = max(self._rest // _LEFT_PART, self._rest - sum(self.by_kind[Kind.TLS :]))
        if size < 0:
            self._look()

    # --- for accounts -----------------------------------------------------------------------------------------------

    def _change(self, account: Account, size: int) -> None:
        before, share = account.held, self.share
        after = account.held = before + size
        small = (after if after < share else share) - (before if before < share else share)
        self._small += small
        self._shared += size - small
        if account.wanted:
            self._place(account)

    def _left(self, account: Account) -> int:
        """What the others, and the one that is kept room for, leave of the capacity."""
        left = self.capacity - self._shared + max(0, account.held - self.share)
        claimant = self._claimant
        if claimant is not None and claimant is not account and self._large is None:
            left -= min(self.capacity // 2, claimant.wanted)
        return left

    def _fits_share(self, size: int) -> bool:
        return self._small + size <= max(self.reserve, self._usable - self._shared)

    def _fits(self, account: Account, more: int) -> bool:
        """Within the account's share, or its part of what the others leave."""
        before, share = account.held, self.share
        after = before + more
        if after <= share:
            return more <= 0 or self._fits_share(more)
        beyond = after - share
        left = self._left(account)
        if beyond > left // _PART or self.held + more > self._usable:
            return False
        return before >= share or self._fits_share(share - before)

    def _fits_large(self, account: Account, more: int, instead: int) -> bool:
        """As the one request that may be larger than its part, or as more of it."""
        if self._large not in (None, account):
            self._settle_large(self._large)
        large = self._large
        if large not in (None, account) or self._claimant not in (None, account) or account.held - instead > self.share:
            return False
        beyond = account.held + more - self.share
        if beyond <= 0:
            return False
        alone = self._shared == max(0, account.held - self.share)
        return alone or (beyond <= self._left(account) and self.held + more <= self._usable)

    def _settle_large(self, account: Account) -> None:
        """The large request is given back, at least in part: is the account one like the others again?"""
        beyond = account.held - self.share
        if beyond <= 0 or beyond <= self._left(account) // _PART:
            self._large = None

    def _place(self, account: Account) -> None:
        """Put an account that waits, new or with other bytes held than before, where it belongs."""
        rest = account.held - account.instead
        need = rest + account.wanted
        bucket = need.bit_length()
        if bucket != account.bucket:
            self._lift(account)
            account.bucket = bucket
            self._buckets.setdefault(bucket, {})[account] = None
        if rest <= self.share < need:
            self._claims.setdefault(account)
            if self._claimant is None:
                self._claimant = account
        else:
            self._disclaim(account)

    def _leave(self, account: Account) -> None:
        account.wanted = 0
        self.waiting -= 1
        self._lift(account)
        self._disclaim(account)

    def _lift(self, account: Account) -> None:
        bucket = self._buckets.get(account.bucket)
        if bucket is not None and account in bucket:
            del bucket[account]
            if not bucket:
                del self._buckets[account.bucket]
        account.bucket = -1

    def _disclaim(self, account: Account) -> None:
        if account in self._claims:
            del self._claims[account]
            if self._claimant is account:
                self._claimant = next(iter(self._claims), None)

    def _look(self) -> None:
        """Have those that wait looked at, later."""
        if self.waiting and not self._telling:
            self._telling = True
            self._defer(self._tell)

    def _tell(self) -> None:
        self._telling = False
        for _ in range(_TOLD_AT_ONCE):
            account = self._next()
            if account is None:
                return
            claims = account is self._claimant
            self._leave(account)
            if claims:
                # Until it has had the chance to ask, which for a task is in the next turn of the loop: were the room
                # kept for another by then, all who wait for much would be told in vain, again and again.
                self._claimant = account
            account.on_room()
            if claims:
                self._defer(self._pass_on_claim)
                return
        self._look()

    def _pass_on_claim(self) -> None:
        """Whoever was told that there is room for much has asked, or will not."""
        if self._claimant not in self._claims:
            self._claimant = next(iter(self._claims), None)
        self._look()

    def _next(self) -> Account | None:
        """Whoever can be told now: the one that is kept room for, else the first of those that need least."""
        claimant = self._claimant
        # Nothing is wanted by one that has been told and has not asked yet.
        if (
            claimant is not None
            and claimant.wanted
            and self._fits_large(claimant, claimant.wanted - claimant.instead, claimant.instead)
        ):
            return claimant
        for bucket in sorted(self._buckets):
            account = next(iter(self._buckets[bucket]))
            if self._fits(account, account.wanted - account.instead):
                return account
        return None


class Account:
    """What one connection holds of a :class:`MemoryBudget`."""

    __slots__ = ("_budget", "_closed", "bucket", "held", "instead", "on_room", "wanted")

    def __init__(self, budget: MemoryBudget, on_room: Callable[[], None]) -> None:
        self.on_room = on_room
        self.held = 0
        """Bytes."""
        self.wanted = 0
        """Bytes it waits for; 0 while it does not wait."""
        self.instead = 0
        """Bytes held that it would give for those."""
        self.bucket = -1
        """For the budget: where it stands among those that wait."""
        self._budget = budget
        self._closed = False

    def another(self) -> Account:
        """Another account of the same budget, which does not wait: what it holds leaves this one its part."""
        return self._budget.account(_nothing)

    def admit(self, kind: Kind, size: int, instead: int = 0) -> bool:
        """Hold ``size`` more bytes if they fit; False, and nothing changes, if they do not.

        ``instead``: bytes of the same kind that are held already and given for them.
        """
        budget = self._budget
        more = size - instead
        if not budget._fits(self, more):
            if not budget._fits_large(self, more, instead):
                budget.refused += 1
                return False
            budget._large = self
        budget._change(self, more)
        budget.by_kind[kind] += more
        return True

    def grant(self, kind: Kind, most: int, least: int) -> int:
        """Hold as many bytes as fit, from ``least`` to ``most``; 0, and nothing is held, if not even ``least`` do."""
        size = most
        while size > least and not self._budget._fits(self, size):
            size = max(least, size // 2)
        return size if self.admit(kind, size) else 0

    def take(self, kind: Kind, size: int) -> None:
        """Hold bytes that are there already, whether they fit or not; see :attr:`crowded`."""
        budget = self._budget
        after = self.held + size
        if after <= budget.share and not self.wanted:
            self.held = after  # the short way for what nearly every request is
            budget._small += size
        else:
            budget._change(self, size)
        budget.by_kind[kind] += size

    def give(self, kind: Kind, size: int) -> None:
        """Bytes are free again. Those that wait are told later, not from here."""
        budget = self._budget
        if self.held <= budget.share and not self.wanted:
            self.held -= size
            budget._small -= size
        else:
            budget._change(self, -size)
        budget.by_kind[kind] -= size
        if budget._large is self:
            budget._settle_large(self)
        if budget.waiting:
            budget._look()

    def count(self, kind: Kind, change: int) -> None:
        """:meth:`take` so many bytes more, or :meth:`give` them if the change is negative."""
        if change > 0:
            self.take(kind, change)
        elif change:
            self.give(kind, -change)

    def move(self, source: Kind, target: Kind, size: int) -> None:
        """Bytes held for one purpose are held for another from now on."""
        self._budget.by_kind[source] -= size
        self._budget.by_kind[target] += size

    @property
    def level(self) -> float:
        """How much of the budget is held, by all accounts: 1 is everything."""
        budget = self._budget
        return (budget._small + budget._shared) / budget._usable

    @property
    def crowded(self) -> bool:
        """Not one more byte fits: nothing more should be received for it."""
        budget = self._budget
        if self.held < budget.share and budget._small < budget.reserve:
            return False  # as the long way would find
        return not budget._fits(self, 1)

    def wait(self, size: int = 1, instead: int = 0) -> None:
        """Have ``on_room`` called when ``size`` bytes fit, once; replaces what it waited for. See :meth:`admit`.

        Whoever is told asks again, at once if its request is large; it waits again if it is refused.
        """
        self.stop_waiting()
        if self._closed:
            return
        self.wanted = max(1, size)
        self.instead = instead
        self._budget.waiting += 1
        self._budget._place(self)
        self._budget._look()

    def stop_waiting(self) -> None:
        """Undo :meth:`wait`."""
        if self.wanted:
            self._budget._leave(self)
            self._budget._look()

    def close(self) -> None:
        """Its connection is gone; bytes still held stay counted until they are given. Harmless when repeated."""
        if not self._closed:
            self._closed = True
            self.stop_waiting()
            self.on_room = _nothing  # whose connection has this account
            self._budget.accounts -= 1


def _nothing() -> None:
    """Nobody is told any more."""
