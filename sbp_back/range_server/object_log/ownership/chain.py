"""The chain of a log's indexes: which index counts, and when its owner may delete what it replaces. Sans-IO.

Indexes are announced by the entries of a *chain*, ``chain/K``, put if absent and never deleted. An entry names an index
object, and the first object of the log that has to be read behind it. The last entry counts. Each entry names its
writer by the number that it claimed (:mod:`.claims`), so of two writers the later one is known:

* a server that opens a log reads it behind its last index, or the one before if that is damaged. It then puts an entry
  of its own: the index that it read, with its own number. From then on earlier writers find that a later one has taken
  the next number: they are fenced, as they are by the log;
* if an earlier writer has taken the number, the server has not read that one's index yet, and begins again with it.

So an index that counts stays the last one until its writer, or a later one, has put another. Objects that it does not
name, and objects before those to be read behind it, are superfluous once the next index is there too (in case this one
is damaged).

A fence that was put into a log counts only if the objects at its number had not been given up. Its writer therefore
looks at the chain again, and begins again with a newer entry if there is one: such an entry precedes any deletion.

The last entry of an adopted log lists the logs that this log had adopted itself (``adopted``), since its adopter may
give up its objects.
"""

from __future__ import annotations

from msgspec import Struct

from sbp_back.range_server.object_log.objects.sealed import Sealed


class Entry(Struct, frozen=True, array_like=True):
    """An entry of the chain. ``writer``: the number that its writer has claimed. ``incarnation``, ``number``: the first
    object that is read behind the index. ``index``: the name of the index object; empty: there is none.
    """

    writer: int
    incarnation: int
    number: int
    index: str
    unique: bytes
    adopted: list[int] | None = None


ENTRIES = Sealed(Entry, "an entry of the chain of indexes")


class Chain:
    """The chain as ``writer`` sees it. ``listed``: numbers known from a listing, which may be stale.

    Pass :meth:`take_entry` the content of :attr:`number` until it returns that the end is reached.
    """

    __slots__ = ("before", "fenced", "last", "number", "writer")

    def __init__(self, writer: int, listed: list[int]) -> None:
        self.writer = writer
        self.number = max(0, max(listed, default=0) - 1)
        """The number to read or put next."""
        self.last: Entry | None = None
        self.before: Entry | None = None
        """The entry before the last one."""
        self.fenced = False
        """A later writer has put an entry."""

    def take_entry(self, there: Entry | None) -> bool:
        """Take the content of the number (None: nothing there); return whether the last entry is known."""
        if there is None:
            return True
        self.before, self.last = self.last, there
        self.fenced = self.fenced or there.writer > self.writer
        self.number += 1
        return False

    def put(self, entry: Entry, there: Entry) -> bool:
        """Take the outcome of putting ``entry`` as the number, which now has ``there``; return whether ``entry``
        counts. If not, and this writer is not fenced, it has to look on, and to begin again with the entry that it
        finds.
        """
        self.take_entry(there)
        return there == entry
