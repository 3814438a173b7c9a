"""A PostgreSQL of a simulated world: the server's side of its protocol, over a file of SQLite's, which breaks as told.

Clients are the product's: libpq and psycopg at the other end of a real socket, whose waiting is done here
(:meth:`Wired.wait`), so that server and clients are one thread and the same seed breaks the same messages.

What a session of PostgreSQL's has, transactions, locks and what is undone with them, is a connection of SQLite's. Its
only lock is that of the whole file, and who meets another transaction is told so as SERIALIZABLE does (40001).
"""

from __future__ import annotations

import re
import select
import socket
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import rows
from psycopg.waiting import Ready, Wait

from anabranch_kit.sql import postgres
from tests.sbp_back.range_server.object_log.world import World

_HOLDS = 4.0
"""Seconds after which a transaction is ended whose client asks for nothing, while another waits for its locks."""
_NUMBER, _TEXT, _BYTES = 20, 25, 17
_VALUE = re.compile(r"\$(\d+)")
_QUIET = re.compile(r"SET |SELECT set_config|SHOW ")
_FAILED = "25P02"
_TAGS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


class Fault(Enum):
    """What becomes of a statement."""

    NONE = "none"
    BEFORE = "before"
    """The connection breaks, and the server never has it."""
    LATE = "late"
    """The connection breaks, and the server has it some time later."""
    INSIDE = "inside"
    """The server has it, and the connection breaks within its answer."""
    BEHIND = "behind"
    """The server has it, and the connection breaks before its answer."""
    SILENT = "silent"
    """The server has it, and nothing comes any more."""
    LOST = "lost"
    """A pooler has lost the server, says FATAL and goes on with another session."""
    LOST_BEHIND = "lost behind"
    """As LOST, but the server has it."""


class Server:
    """Takes connections at :attr:`url`.

    ``fault`` says what becomes of a statement; ``committed`` is called behind each commit, and ``rest`` where a client
    is about to wait, so that others may come between. While ``away_until`` lies ahead nobody gets in.
    """

    def __init__(
        self, world: World, fault: Callable[[str], Fault], committed: Callable[[], None], rest: Callable[[], None]
    ) -> None:
        self.world = world
        self.fault = fault
        self.rest = rest
        self.committed = committed
        self.away_until = 0.0
        self.sessions: list[Session] = []
        self._numbers = count(1)
        self._directory = tempfile.TemporaryDirectory(prefix="anabranch-wire-", dir=_memory())
        directory = Path(self._directory.name)
        self.path = directory / "db"
        self.url = f"host={directory} port=1 user=u dbname=d sslmode=disable gssencmode=disable"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.1"))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self.connection = self.connect()
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(
            "CREATE TABLE sql_commits (session TEXT, number INTEGER, made TEXT DEFAULT 'now', "
            "PRIMARY KEY (session, number))"
        )

    @property
    def is_away(self) -> bool:
        return self.world.now < self.away_until and not self.world.calm

    def connect(self) -> sqlite3.Connection:
        """Open the file."""
        connection = sqlite3.connect(self.path, 0.0, isolation_level=None, cached_statements=256)
        connection.execute("PRAGMA synchronous = OFF")
        connection.create_function("isfinite", 1, lambda made: int(made != "infinity"), deterministic=True)
        return connection

    def accept(self) -> Session:
        """Take the connection that a client has just made."""
        end, _ = self._listener.accept()
        end.setblocking(False)
        session = Session(self, end, next(self._numbers))
        self.sessions.append(session)
        return session

    def leave(self, seconds: float) -> None:
        """Stop, connections included, and start again so long after."""
        self.away_until = self.world.now + seconds
        for one in list(self.sessions):
            one.shut()

    def end_holders(self, of: Session | None, held_s: float = _HOLDS) -> None:
        """End the transactions of others whose clients say nothing."""
        for one in list(self.sessions):
            if one is not of and one.db.in_transaction and self.world.now - one.heard >= held_s:
                one.cut()
                one.end()

    def close(self) -> None:
        for one in list(self.sessions):
            one.cut()
            one.end()
        self.connection.close()
        self._listener.close()
        self._directory.cleanup()


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Session:
    """One of the server's processes, and its end of the socket."""

    def __init__(self, server: Server, end: socket.socket, number: int) -> None:
        self.server = server
        self.number = number
        self.db = server.connect()
        self.heard = server.world.now
        self._end: socket.socket | None = end
        self._begun = False
        self._in = b""
        self._out = bytearray()
        self._failed = False
        self._skips = False
        self._silent = False
        self._prepared: dict[bytes, tuple[str, tuple[int, ...]]] = {}
        self._bound: tuple[str, list[Any]] = ("", [])
        self._fault = Fault.NONE
        self._found: tuple[list[tuple[str, int]], list[tuple[Any, ...]], str] | None = None

    # --- the socket -------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Read what the client has sent, and answer."""
        if self._end is None:
            return
        ended = False
        try:
            while data := self._end.recv(1 << 16):
                self._in += data
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        if not self._silent:
            self._handle()
        self._flush()
        if ended:
            self.cut()

    def _flush(self) -> None:
        out, self._out = self._out, bytearray()
        if self._end is not None and out:
            try:
                self._end.sendall(out)
            except OSError:
                self.cut()

    def cut(self) -> None:
        """Break the connection. What was begun is undone when the server notices, at once or later."""
        if self._end is None:
            return
        self._end.close()
        self._end = None
        world = self.server.world
        if self.db.in_transaction and not world.calm and world.random.random() < 0.5:
            world.after(world.random.uniform(0.05, 2 * _HOLDS), self.end)
        else:
            self.end()

    def end(self) -> None:
        """The process ends: nothing remains of what it has not committed."""
        if self in self.server.sessions:
            self.server.sessions.remove(self)
            self.db.close()

    def _late(self) -> None:
        if self in self.server.sessions:
            self._handle(late=True)
            self.end()

    def shut(self) -> None:
        """The server stops."""
        self._refuse("57P01", "terminating connection due to administrator command", "FATAL")
        self._flush()
        if self._end is not None:
            self._end.close()
            self._end = None
        self.end()

    # --- messages ---------------------------------------------------------------------------------------------------

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._in) >= 5 if self._begun else len(self._in) >= 4:
            at = 1 if self._begun else 0
            (length,) = struct.unpack_from(">i", self._in, at)
            if len(self._in) < at + length:
                return
            kind, payload = self._in[:at], self._in[at + 4 : at + length]
            self._in = self._in[at + length :]
            yield kind, payload

    def _handle(self, late: bool = False) -> None:
        for kind, payload in self._messages():
            self.heard = self.server.world.now
            if self.server.is_away:
                self.shut()
                return
            if not self._begun:
                self._begun = True
                self._welcome()
            elif kind == b"X":
                self.cut()
                return
            elif self._skips and kind != b"S":
                continue
            elif not late and self._is_broken(kind, payload):
                if self._end is None:
                    return
            else:
                self._one(kind, payload)
                if self._fault is not Fault.NONE and kind in b"EQ" and self._break_behind():
                    return

    def _is_broken(self, kind: bytes, payload: bytes) -> bool:
        """Draw what becomes of a statement; return whether the server is not to have it, or not now."""
        if kind == b"Q":
            text = payload[:-1].decode()
        elif kind == b"B":
            text, _ = self._prepared.get(payload.split(b"\0", 2)[1], ("", ()))
        else:
            return False
        fault = self._fault = Fault.NONE if _QUIET.match(text) else self.server.fault(text)
        world = self.server.world
        if fault is Fault.BEFORE:
            self.cut()
        elif fault is Fault.LATE and self._end is not None:
            self._fault = Fault.NONE
            self._in = kind + struct.pack(">i", len(payload) + 4) + payload + self._in
            self._end.close()
            self._end = None
            world.after(world.random.uniform(0.05, 3.0), self._late)
        elif fault is Fault.LOST:
            self._lose(kind)
        else:
            return False
        return True

    def _break_behind(self) -> bool:
        """The server has had a statement: what becomes of its answer."""
        fault, self._fault = self._fault, Fault.NONE
        if fault is Fault.BEHIND:
            self._out.clear()
        elif fault is Fault.INSIDE:
            del self._out[len(self._out) // 2 :]
            self._flush()
        elif fault is Fault.SILENT:
            self._out.clear()
            self._silent = True
            return True
        elif fault is Fault.LOST_BEHIND:
            self._out.clear()
            self._lose(b"E")
            return False
        else:
            return False
        self.cut()
        return True

    def _lose(self, kind: bytes) -> None:
        """The pooler's server is gone; the next statements go to another one."""
        self._fault = Fault.NONE
        self.db.close()
        self.db = self.server.connect()
        self._prepared.clear()
        self._failed = False
        severity = "FATAL" if self.server.world.random.random() < 0.5 else "ERROR"
        self._refuse("08P01", "server conn crashed?", severity)
        if kind == b"Q":
            self._ready()
        else:
            self._skips = True

    def _one(self, kind: bytes, payload: bytes) -> None:
        try:
            match kind:
                case b"Q":
                    self._execute(payload[:-1].decode(), [])
                    self._describe(simple=True)
                    self._answer()
                    self._ready()
                case b"P":
                    name, text, rest = payload.split(b"\0", 2)
                    (many,) = struct.unpack_from(">h", rest)
                    self._prepared[name] = (text.decode(), struct.unpack_from(f">{many}i", rest, 2))
                    self._say(b"1")
                case b"B":
                    self._bind(payload)
                    self._say(b"2")
                case b"D":
                    self._execute(*self._bound)
                    self._describe()
                case b"E":
                    if self._found is None:
                        self._execute(*self._bound)
                    self._answer()
                case b"S":
                    self._skips = False
                    self._ready()
                case b"C":
                    self._say(b"3")
                case b"H":
                    pass
                case _:
                    raise AssertionError(f"message {kind!r}")
        except _Refused as refused:
            self._found = None
            self._failed = self.db.in_transaction
            self._refuse(refused.code, str(refused))
            if kind == b"Q":
                self._ready()
            else:
                self._skips = True

    def _welcome(self) -> None:
        self._say(b"R", struct.pack(">i", 0))
        for name, value in (("server_version", "16.0"), ("client_encoding", "UTF8"), ("integer_datetimes", "on")):
            self._say(b"S", f"{name}\0{value}\0".encode())
        self._say(b"K", struct.pack(">ii", self.number, 0))
        self._ready()

    def _bind(self, payload: bytes) -> None:
        _, name, rest = payload.split(b"\0", 2)
        if name not in self._prepared:
            raise _Refused("26000", f"prepared statement {name.decode()!r} does not exist")
        text, kinds = self._prepared[name]
        (many,) = struct.unpack_from(">h", rest)
        formats = struct.unpack_from(f">{many}h", rest, 2)
        at = 2 + 2 * many
        (size,) = struct.unpack_from(">h", rest, at)
        at += 2
        values: list[Any] = []
        for number in range(size):
            (length,) = struct.unpack_from(">i", rest, at)
            at += 4
            raw = rest[at : at + max(length, 0)]
            at += max(length, 0)
            if length < 0:
                values.append(None)
            elif formats[number] == 0:
                values.append(raw.decode())
            else:
                values.append(int.from_bytes(raw, signed=True) if kinds[number] == _NUMBER else raw)
        self._bound = text, values

    # --- statements -------------------------------------------------------------------------------------------------

    def _execute(self, text: str, values: list[Any]) -> None:
        """Raises _Refused."""
        if _QUIET.match(text):
            self._found = [], [], "SET"
            return
        if text == "DEALLOCATE ALL":
            self._prepared.clear()
            self._found = [], [], text
            return
        if text.lstrip().startswith("SELECT pid, pg_terminate_backend"):
            self.server.end_holders(self)
            self._found = [("pid", _NUMBER)], [], "SELECT 0"
            return
        word = text.split(None, 1)[0]
        if self._failed and not text.startswith("ROLLBACK"):
            if word != "COMMIT":
                raise _Refused(_FAILED, "current transaction is aborted")
            word = "ROLLBACK"
        if word == "ROLLBACK" and not text.startswith("ROLLBACK TO"):
            self._failed = False
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self._found = [], [], word
            return
        if not self.db.in_transaction:
            if word == "COMMIT":
                self._found = [], [], word  # with a warning
                return
            if word in ("SAVEPOINT", "RELEASE", "ROLLBACK"):
                raise _Refused("25P01", f"{word} can only be used in transaction blocks")
        try:
            cursor = self.db.execute(word if word in ("BEGIN", "COMMIT") else _VALUE.sub(r"?\1", text), values)
            found = cursor.fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise _Refused("40001", "could not serialize access due to concurrent update") from None
            self.server.end_holders(self)
            raise _Refused("55P03", "canceling statement due to lock timeout") from None
        except sqlite3.IntegrityError as error:
            raise _Refused("23505", str(error)) from None
        self._failed = False
        columns = [
            (name, _kind_of([row[at] for row in found])) for at, (name, *_) in enumerate(cursor.description or ())
        ]
        many = len(found) if word == "SELECT" else max(cursor.rowcount, 0)
        tag = word if word in _TAGS else f"INSERT 0 {many}" if word == "INSERT" else f"{word} {many}"
        self._found = columns, found, tag
        if not self.db.in_transaction and word != "SELECT":
            self.server.committed()

    def _describe(self, *, simple: bool = False) -> None:
        assert self._found is not None
        columns, _, _ = self._found
        if not columns:
            if not simple:
                self._say(b"n")
            return
        said = struct.pack(">h", len(columns))
        for name, kind in columns:
            said += name.encode() + b"\0" + struct.pack(">ihihih", 0, 0, kind, -1, -1, 0)
        self._say(b"T", said)

    def _answer(self) -> None:
        assert self._found is not None
        _, found, tag = self._found
        self._found = None
        for row in found:
            said = struct.pack(">h", len(row))
            for value in row:
                raw = _shown(value)
                said += struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw
            self._say(b"D", said)
        self._say(b"C", tag.encode() + b"\0")

    def _ready(self) -> None:
        self._say(b"Z", b"E" if self._failed else b"T" if self.db.in_transaction else b"I")

    def _refuse(self, code: str, text: str, severity: str = "ERROR") -> None:
        self._say(b"E", f"S{severity}\0V{severity}\0C{code}\0M{text}\0\0".encode())

    def _say(self, kind: bytes, payload: bytes = b"") -> None:
        self._out += kind + struct.pack(">i", len(payload) + 4) + payload


class _Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _kind_of(values: list[Any]) -> int:
    for value in values:
        if value is not None:
            return _NUMBER if isinstance(value, int) else _BYTES if isinstance(value, bytes) else _TEXT
    return _TEXT


def _shown(value: Any) -> bytes | None:
    if value is None:
        return None
    return b"\\x" + value.hex().encode() if isinstance(value, bytes) else str(value).encode()


class Wired(postgres._Connection):
    """The product's connection, whose server works while it waits."""

    server: ClassVar[Server]
    """That of the world at hand."""
    _session: Session

    @classmethod
    def connect(cls, *_: Any, **__: Any) -> Any:
        server = cls.server
        gen = cls._connect_gen(server.url)
        session: Session | None = None
        try:
            descriptor, wants = next(gen)
            session = server.accept()
            while True:
                session.work()
                descriptor, wants = gen.send(_ready(descriptor, wants))
        except StopIteration as ended:
            connection = ended.value
        connection._session = session
        connection._autocommit = True
        connection.row_factory = rows.tuple_row
        return connection

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        descriptor = self.pgconn.socket
        try:
            wants = next(gen)
            self.server.rest()
            while True:
                self._session.work()
                ready = _ready(descriptor, wants)
                if not ready:
                    self.pgconn.finish()
                    self._session.work()
                    raise psycopg.OperationalError("it has not answered")
                wants = gen.send(ready)
        except StopIteration as ended:
            return ended.value
        finally:
            with suppress(psycopg.Error):
                gen.close()

    def close(self) -> None:
        super().close()
        self._session.work()


def _ready(descriptor: int, wants: Wait) -> Ready | int:
    ready = Ready.W if wants & Wait.W else 0
    if wants & Wait.R and select.select([descriptor], [], [], 0)[0]:
        ready |= Ready.R
    return ready
