"""Which index of a log counts, and who may give up what it has no use for. Sans-IO.

Indexes are told by the entries of a *chain*, ``chain/K``, put if absent and never deleted. An entry names an index
object, and the object of the log from which on everything has to be read behind it. The last entry counts. Each says
who wrote it, by the number that was claimed (:mod:`.claims`), so of two writers the later one is known:

* who opens a log reads it behind its last index, or the one before if that is damaged, and then puts an entry of its
  own: the index that was read, its own number. From then on those before it find the next number taken by a later one:
  they are fenced, as they are by the log;
* who finds it taken by an earlier one has not read that one's index yet, and begins again with it.

So an index that counts stays the last one until who wrote it, or a later one, has put another. What it does not name,
and what lies before the objects that are to be read behind it, nobody needs any more, once the next one is there as
well, in case it is damaged.

A fence that was put into a log counts where its number was not given up: who has put it looks at the chain again. If
there is a newer entry, which was there before anything was given up, it begins again with that.

The last entry of a log that was adopted says which logs this had adopted itself (``adopted``), since its objects may be
given up by its adopter.
"""

from __future__ import annotations

from msgspec import Struct

from sbp_back.range_server.object_log.sealed import Sealed


class Entry(Struct, frozen=True, array_like=True):
    """``writer``: the number that its writer has claimed. ``incarnation``, ``number``: the first object that is read
    behind the index. ``index``: the name of the object; empty: there is none."""

    writer: int
    incarnation: int
    number: int
    index: str
    unique: bytes
    adopted: list[int] | None = None


ENTRIES = Sealed(Entry, "an entry of the chain of indexes")


class Chain:
    """The chain as ``writer`` sees it. ``listed``: numbers that are known of, however old that is.

    Tell :meth:`looked` what :attr:`number` has until it says that the end is reached.
    """

    __slots__ = ("before", "fenced", "last", "number", "writer")

    def __init__(self, writer: int, listed: list[int]) -> None:
        self.writer = writer
        self.number = max(0, max(listed, default=0) - 1)
        """The number that is looked at or put."""
        self.last: Entry | None = None
        self.before: Entry | None = None
        """The entry before the last one."""
        self.fenced = False
        """A later one has written."""

    def looked(self, there: Entry | None) -> bool:
        """What the number has, None: nothing; whether the last entry is known."""
        if there is None:
            return True
        self.before, self.last = self.last, there
        self.fenced = self.fenced or there.writer > self.writer
        self.number += 1
        return False

    def put(self, entry: Entry, there: Entry) -> bool:
        """``entry`` was put as the number, which has ``there``; whether it counts. If not, and this one is not fenced,
        it has to look on, and to begin again with what it finds."""
        self.looked(there)
        return there == entry
