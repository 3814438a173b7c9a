"""One bound for the memory that the connections of a process make it hold: requests, unsent responses, reads.

Every connection has an account. Three rules keep a few of them from holding everything:

* The first ``share`` bytes of an account come out of a reserve which nothing else may use, so that only as many
  accounts as fill the reserve, a thousand by default, can keep the next one from its share.
* What an account holds beyond its share is at most an eighth of what the others leave of the rest. However many take as
  much as they can, a part stays free for the next; the more there are, the less each gets.
* A single request that is larger than that, up to the largest a protocol allows, is admitted when it fits in what is
  free, one such account at a time. For the longest waiting one up to half of the rest is kept free, so that its turn
  comes. A large request that is alone is never refused.

Some memory is in no account, since nobody could wait for it: TLS buffers for the life of a connection, a node's history
of its traffic, and data fetched from an object store for readers. It makes the rest smaller, by three quarters at most,
so that work goes on whatever the number of connections.

A refused account waits and is called when there is room, the one that needs least first. Nothing is called from within
:meth:`Account.give`: the calls are deferred, and a bounded number is made at a time. These are the states of an
account's wait; what is not in the table cannot happen:

| state | event | next | what follows |
|---|---|---|---|
| CONTENT | ``wait`` for what its share holds, or while it holds more than that | WAITING | it is sorted by its need |
| CONTENT | ``wait`` for more than its share holds | QUEUED | the same, and it may claim |
| QUEUED | it is the first, and no account claims | CLAIMANT | up to half of the rest is kept free for it |
| WAITING, QUEUED, CLAIMANT | it takes or gives bytes | any of these | by its need as it is now |
| WAITING, QUEUED | what it needs fits into its part, and no account that needs less fits | CONTENT | it is called |
| CLAIMANT | what it needs fits into its part, or as the one large request | TOLD | it is called; room is still kept |
| TOLD | ``wait`` for as much | CLAIMANT | it has asked, and the room was gone |
| TOLD | the next turn of the loop | CONTENT | the first that is QUEUED claims |
| WAITING, QUEUED, CLAIMANT | ``stop_waiting``, ``close`` | CONTENT | likewise, if it claimed |
| CONTENT, TOLD | ``admit`` of more than its part, and no other account claims or is large | *large* | no other is |
| *large* | it gives so much that what it holds is no more than its part | | another may be |

``wanted`` is 0 in CONTENT and TOLD. The others are in ``_buckets``, QUEUED and CLAIMANT in ``_claims`` as well. There
is one ``_claimant`` (CLAIMANT or TOLD) and one ``_large`` at a time; the large one may wait for more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

_PART = 8
"""An account may hold one part in so many of the bytes that the others leave."""
_SHARE = 64 * 1024
_SHARES = 16
"""The reserve has at least so many shares, however small the budget is."""
_TOLD_AT_ONCE = 64
_LEFT_PART = 4
"""TLS leaves one part in so many of the rest."""


class Kind(IntEnum):
    """Purpose of held memory; each kind is counted separately."""

    REQUESTS = 0
    """Requests being received, waiting or in progress, including appends that are not durable yet."""
    RESPONSES = 1
    """Answers that a socket has not taken yet."""
    READS = 2
    """Reads in flight, whose bytes belong to no answer yet."""
    TLS = 3
    """Buffers of connections with TLS."""
    HISTORY = 4
    """A node's history of its own traffic."""
    OBJECTS = 5
    """Data fetched from an object store, until it is in the cache on the local disk."""


class MemoryBudget:
    """A budget of ``total`` bytes, of which a quarter is the reserve. ``defer`` calls a function later: a loop's
    ``call_soon``.
    """

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
        # By the bit length of the bytes needed; each bucket in the order of arrival.
        self._buckets: dict[int, dict[Account, None]] = {}
        self._large: Account | None = None
        # Accounts that need more than their share and hold no more than it; room is kept for the first.
        self._claims: dict[Account, None] = {}
        self._claimant: Account | None = None
        self._telling = False

    @property
    def held(self) -> int:
        """Return the bytes held by all accounts."""
        return self._small + self._shared

    @property
    def _usable(self) -> int:
        return self.reserve + self.capacity

    @property
    def scarce(self) -> bool:
        """Return whether so much is held that unrequested data should come in small pieces."""
        return self._small + self._shared > self.capacity

    def account(self, on_room: Callable[[], None]) -> Account:
        """Return a new account. ``on_room`` is called once after each :meth:`Account.wait`, when there is room."""
        self.accounts += 1
        return Account(self, on_room)

    def attach(self, size: int, kind: Kind = Kind.TLS) -> None:
        """Count ``size`` bytes in no account for as long as their holder lives, as TLS takes for a connection; negative
        when it is gone.
        """
        self.by_kind[kind] += size
        self.capacity = max(self._rest // _LEFT_PART, self._rest - sum(self.by_kind[Kind.TLS :]))
        if size < 0:
            self._tell_soon()

    # --- for accounts -----------------------------------------------------------------------------------------------

    def _change(self, account: Account, size: int) -> None:
        before, share = account.held, self.share
        after = account.held = before + size
        small = (after if after < share else share) - (before if before < share else share)
        self._small += small
        self._shared += size - small
        if account.wanted:
            self._place(account)

    def _room_for(self, account: Account) -> int:
        """Return the part of the capacity that the other accounts, and the room kept for the claimant, leave."""
        left = self.capacity - self._shared + max(0, account.held - self.share)
        claimant = self._claimant
        if claimant is not None and claimant is not account and self._large is None:
            left -= min(self.capacity // 2, claimant.wanted)
        return left

    def _fits_share(self, size: int) -> bool:
        return self._small + size <= max(self.reserve, self._usable - self._shared)

    def _fits(self, account: Account, more: int) -> bool:
        """Return whether ``more`` bytes fit within the account's share, or its part of what the others leave."""
        before, share = account.held, self.share
        after = before + more
        if after <= share:
            return more <= 0 or self._fits_share(more)
        beyond = after - share
        left = self._room_for(account)
        if beyond > left // _PART or self.held + more > self._usable:
            return False
        return before >= share or self._fits_share(share - before)

    def _fits_large(self, account: Account, more: int, instead: int) -> bool:
        """Return whether ``more`` bytes fit as the one request that may be larger than its part, or as an addition to
        it.
        """
        if self._large not in (None, account):
            self._settle_large(self._large)
        large = self._large
        if large not in (None, account) or self._claimant not in (None, account) or account.held - instead > self.share:
            return False
        beyond = account.held + more - self.share
        if beyond <= 0:
            return False
        alone = self._shared == max(0, account.held - self.share)
        return alone or (beyond <= self._room_for(account) and self.held + more <= self._usable)

    def _settle_large(self, account: Account) -> None:
        """Note that the large request has given bytes back: its account may be an ordinary one again."""
        beyond = account.held - self.share
        if beyond <= 0 or beyond <= self._room_for(account) // _PART:
            self._large = None

    def _place(self, account: Account) -> None:
        """Sort a waiting account, new or with other bytes held than before, into its bucket and the claims."""
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

    def _tell_soon(self) -> None:
        """Schedule :meth:`_tell`, if any accounts wait."""
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
                # Keep its claim until it has had the chance to ask, which for a task is in the next turn of the loop.
                # If the room were kept for another account by then, every large request would be called in vain.
                self._claimant = account
            account.on_room()
            if claims:
                self._defer(self._pass_on_claim)
                return
        self._tell_soon()

    def _pass_on_claim(self) -> None:
        """Give the claim to the next account, unless the called one waits again: it has asked by now, or will not."""
        if self._claimant not in self._claims:
            self._claimant = next(iter(self._claims), None)
        self._tell_soon()

    def _next(self) -> Account | None:
        """Return the account to call next: the claimant if it fits, else the first that fits of those that need
        least.
        """
        claimant = self._claimant
        # A claimant that was called and has not asked yet wants 0 bytes.
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
    """The bytes of a :class:`MemoryBudget` that one connection holds."""

    __slots__ = ("_budget", "_closed", "bucket", "held", "instead", "on_room", "wanted")

    def __init__(self, budget: MemoryBudget, on_room: Callable[[], None]) -> None:
        self.on_room = on_room
        self.held = 0
        """Bytes."""
        self.wanted = 0
        """Bytes it waits for; 0 while it does not wait."""
        self.instead = 0
        """Bytes held that it would give in return."""
        self.bucket = -1
        """Its bucket among the waiting accounts, set by the budget; -1 while it does not wait."""
        self._budget = budget
        self._closed = False

    def another(self) -> Account:
        """Return another account of the same budget, which never waits: what it holds does not reduce this one's
        part.
        """
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
        """Hold as many bytes as fit, from ``least`` to ``most``, and return them; 0, and nothing is held, if not even
        ``least`` fit.
        """
        size = most
        while size > least and not self._budget._fits(self, size):
            size = max(least, size // 2)
        return size if self.admit(kind, size) else 0

    def take(self, kind: Kind, size: int) -> None:
        """Hold bytes that exist already, whether they fit or not; see :attr:`crowded`."""
        budget = self._budget
        after = self.held + size
        if after <= budget.share and not self.wanted:
            self.held = after  # fast path, for nearly every request
            budget._small += size
        else:
            budget._change(self, size)
        budget.by_kind[kind] += size

    def give(self, kind: Kind, size: int) -> None:
        """Release bytes. Waiting accounts are called later, not from here."""
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
            budget._tell_soon()

    def count(self, kind: Kind, change: int) -> None:
        """Take ``change`` bytes more (:meth:`take`), or give them back (:meth:`give`) if it is negative."""
        if change > 0:
            self.take(kind, change)
        elif change:
            self.give(kind, -change)

    def move(self, source: Kind, target: Kind, size: int) -> None:
        """Hold ``size`` bytes for another purpose from now on."""
        self._budget.by_kind[source] -= size
        self._budget.by_kind[target] += size

    @property
    def level(self) -> float:
        """Return the fraction of the budget that all accounts hold: 1 is everything."""
        budget = self._budget
        return (budget._small + budget._shared) / budget._usable

    @property
    def crowded(self) -> bool:
        """Return whether not one more byte fits: nothing more should be received for this account."""
        budget = self._budget
        if self.held < budget.share and budget._small < budget.reserve:
            return False  # with the result of the slow path
        return not budget._fits(self, 1)

    def wait(self, size: int = 1, instead: int = 0) -> None:
        """Have ``on_room`` called when ``size`` bytes fit, once; replaces an earlier wait. See :meth:`admit`.

        The called account asks again, at once if its request is large; it waits again if it is refused.
        """
        self.stop_waiting()
        if self._closed:
            return
        self.wanted = max(1, size)
        self.instead = instead
        self._budget.waiting += 1
        self._budget._place(self)
        self._budget._tell_soon()

    def stop_waiting(self) -> None:
        """Undo :meth:`wait`."""
        if self.wanted:
            self._budget._leave(self)
            self._budget._tell_soon()

    def close(self) -> None:
        """Close the account of a connection that is gone; bytes still held stay counted until they are given.
        Idempotent.
        """
        if not self._closed:
            self._closed = True
            self.stop_waiting()
            self.on_room = _nothing  # whose connection has this account
            self._budget.accounts -= 1


def _nothing() -> None:
    """Do nothing: the account is closed, or never waits."""
