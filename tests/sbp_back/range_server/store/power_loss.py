"""Loss of power, simulated: what the kernel is asked to do with files is recorded, and every state that the disk may be
in after the power went at some moment can be built from the record.

The disk keeps what was flushed. Of everything else each 512-byte sector is there in any of the versions it had since
its last flush, or as it was before; sizes of files go as far as they please along the way they took; names appear,
change and vanish together with those before them or each on its own. That is less than file systems promise.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.store.options import MOVED

SECTOR = 512

Step = tuple[object, ...]
"""What was done, and to what: see :meth:`Disk.apply`."""

Image = dict[str, bytes | None]
"""Path -> content of the file; None for a directory."""


class RecordingCalls:
    """System calls on real files, without real flushes, and a record of every step in ``steps``; paths are told
    relative to ``root``. What is on the disk then depends on what the kernel was asked for, flags included.

    Flushes are recorded with their *site*: the function that asked :class:`Files` for one, and for files that are
    replaced as a whole the suffix of their names.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[Step] = []
        self.dead = False
        """The process is dead: nothing reaches the kernel any more."""
        self.fault: str | None = None
        """What becomes of the next flushed write: ``killed`` (the process dies while it waits for the flush), ``eio``
        (the flush fails, and the kernel takes its pages for clean) or ``enospc`` (it finds no room, which may come to
        light only then; the pages stay)."""
        self.dsync = True
        """Whether the flag that has a write flushed is known."""
        self.objects: dict[str, bytes] = {}
        """An object storage elsewhere, which keeps its power."""
        self._lock = threading.RLock()
        self._created = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._directories: dict[int, Path] = {}

    def mark(self, *what: object) -> None:
        with self._lock:
            self.steps.append(("mark", *what))

    def _note(self, *step: object) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
        self.steps.append(step)

    def put(self, key: str, content: bytes) -> bool:
        """Put an object if there is none of that name; whether it was."""
        with self._lock:
            if key in self.objects:
                return False
            self._note("put", key, content)
            self.objects[key] = content
            return True

    def remove(self, key: str) -> None:
        with self._lock:
            if key in self.objects:
                self._note("remove", key)
                del self.objects[key]

    def _place(self, path: Path) -> tuple[str, str]:
        return str(path.parent.relative_to(self.root)), path.name

    def _number(self, fd: int) -> int:
        """Number of the file that is open as ``fd``: inodes are used again, numbers are not."""
        status = os.fstat(fd)
        return self._numbers[status.st_dev, status.st_ino]

    def adopt(self, image: Image) -> None:
        """The files of an image, which :func:`steps_of` tells a disk, are there already."""
        for number, path in numbered(image):
            status = os.stat(self.root / path)
            self._numbers[status.st_dev, status.st_ino] = number

    @staticmethod
    def _site(what: str) -> str:
        frame = sys._getframe(2)
        name = frame.f_code.co_qualname
        while name.startswith("Files.") and name != "Files.probe":
            assert frame.f_back is not None
            frame = frame.f_back
            name = frame.f_code.co_qualname
        if name == "write_file_durably":
            path = frame.f_locals["path"]
            name += path.suffix + (" of what was moved" if path.parent.name == MOVED else "")
        return f"{what} in {name}"

    def _meet(self, number: int, offset: int, size: int) -> None:
        """A flush is waited for: the fault that is set happens now."""
        fault, self.fault = self.fault, None
        if fault == "enospc":
            raise OSError(errno.ENOSPC, fault)
        if fault == "eio":
            self._note("lost", number, offset, size)
        elif fault is not None:
            self.dead = True
        if fault is not None:
            raise OSError(errno.EIO, fault)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            if flags & os.O_DIRECTORY:
                fd = os.open(path, flags)
                self._directories[fd] = path
                return fd
            there = path.exists()
            if not there and flags & os.O_CREAT:
                self._created += 1
                self._note("create", *self._place(path), self._created)
            fd = os.open(path, flags, mode)
            status = os.fstat(fd)
            if not there:
                self._numbers[status.st_dev, status.st_ino] = self._created
            elif flags & os.O_TRUNC:
                self._note("truncate", self._number(fd), 0)
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._directories.pop(fd, None)
            os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0, /) -> int:
        with self._lock:
            if flags and not self.dsync:
                raise OSError(errno.EOPNOTSUPP, "no such flag")
            data = b"".join(buffers)
            number = self._number(fd)
            self._note("write", number, offset, data)
            written = os.pwrite(fd, data, offset)
            if flags & os.RWF_DSYNC:
                self._meet(number, offset, len(data))
                self._note("flush", number, offset, len(data), self._site("flushed write"))
            return written

    def preadv(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0, /) -> int:
        """All is in memory, so nobody ever has to wait."""
        return os.preadv(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            number = self._number(fd)
            self._meet(number, 0, os.fstat(fd).st_size)
            self._note("sync", number, self._site("data flush"))

    def fsync(self, fd: int) -> None:
        with self._lock:
            directory = self._directories.get(fd)
            if directory is None:
                self._note("sync", self._number(fd), self._site("file flush"))
            else:
                self._note("sync_directory", str(directory.relative_to(self.root)), self._site("directory flush"))

    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None:
        with self._lock:
            self._note("allocate", self._number(fd), offset + length)
            os.posix_fallocate(fd, offset, length)

    def ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._note("truncate", self._number(fd), length)
            os.ftruncate(fd, length)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def lseek(self, fd: int, position: int, whence: int, /) -> int:
        return os.lseek(fd, position, whence)

    def rename(self, src: Path, dst: Path) -> None:
        with self._lock:
            self._note("rename", *self._place(src), dst.name)
            os.rename(src, dst)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._note("unlink", *self._place(path))
            os.unlink(path)

    def mkdir(self, path: Path) -> None:
        with self._lock:
            os.mkdir(path)
            self._note("mkdir", *self._place(path))

    def statvfs(self, path: Path) -> os.statvfs_result:
        return os.statvfs(path)


@dataclass(slots=True)
class DiskFile:
    durable: bytearray = field(default_factory=bytearray)
    size: int = 0
    """As the kernel has it; ``sizes`` has what it became since the last flush: (step, size, ...)."""
    cache: dict[int, bytes] = field(default_factory=dict)
    """The newest version of sectors that are not as the durable ones."""
    dirty: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Versions of sectors that a flush would write: (step, bytes)."""
    sizes: list[tuple[int, int, bool]] = field(default_factory=list)
    """... and whether that cut something off."""

    def _sector(self, number: int) -> bytes:
        found = self.cache.get(number)
        if found is None:
            found = bytes(self.durable[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")
        return found

    def write(self, step: int, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, begin = divmod(offset + at, SECTOR)
            piece = data[at : at + SECTOR - begin]
            if len(piece) == SECTOR:
                sector = piece
            else:
                old = self._sector(number)
                sector = old[:begin] + piece + old[begin + len(piece) :]
            self.cache[number] = sector
            self.dirty.setdefault(number, []).append((step, sector))
            at += len(piece)
        self.grow(step, offset + len(data))

    def grow(self, step: int, size: int) -> None:
        if size > self.size:
            self.size = size
            self.sizes.append((step, size, False))

    def truncate(self, step: int, size: int) -> None:
        cut = size < self.size
        if cut:
            for number in range(size // SECTOR, -(-max(self.size, len(self.durable)) // SECTOR)):
                kept = max(size - number * SECTOR, 0)
                sector = self._sector(number)[:kept].ljust(SECTOR, b"\0")
                self.cache[number] = sector
                # Not just one more version: what is behind the new end is gone once the new size is there.
                self.dirty.setdefault(number, []).append((step, sector))
        self.size = size
        self.sizes.append((step, size, cut))

    def flush(self, begin: int, end: int) -> None:
        """What a write with ``RWF_DSYNC`` makes durable: its bytes, and as much of the size as they need."""
        if len(self.durable) < end:
            self.durable.extend(bytes(end - len(self.durable)))
        for number in range(begin // SECTOR, -(-end // SECTOR)):
            self._settle(number)

    def _settle(self, number: int) -> None:
        versions = self.dirty.pop(number, None)
        if versions is not None:
            begin = number * SECTOR
            end = min(begin + SECTOR, len(self.durable))
            self.durable[begin:end] = versions[-1][1][: end - begin]
            self.cache.pop(number, None)

    def sync(self) -> None:
        if len(self.durable) > self.size:
            del self.durable[self.size :]
        self.durable.extend(bytes(self.size - len(self.durable)))
        for number in list(self.dirty):
            self._settle(number)
        self.sizes.clear()

    def lose(self, begin: int, end: int) -> None:
        """The flush failed: the pages count as clean from now on, and nothing of them is on the disk."""
        for number in range(begin // SECTOR, -(-end // SECTOR)):
            self.dirty.pop(number, None)

    def content(self, rng: Random, how: str) -> bytes:
        """One of the states this file may be found in."""
        if how == "all":
            reached = len(self.sizes)
        elif how == "none":
            reached = 0
        else:
            reached = rng.randint(0, len(self.sizes))
        size = self.sizes[reached - 1][1] if reached else len(self.durable)
        # The flushed bytes are there whatever became of the size, unless it was cut down on purpose.
        last_cut = max((step for step, _, cut in self.sizes[:reached] if cut), default=-1)
        if last_cut < 0:
            size = max(size, len(self.durable))
        data = bytearray(self.durable[:size].ljust(size, b"\0"))
        steps = sorted({step for versions in self.dirty.values() for step, _ in versions})
        there = {step for step in steps if rng.random() < 0.5}
        torn_at = rng.choice(steps) if steps else 0
        block: dict[int, int] = {}
        for number, versions in self.dirty.items():
            begin = number * SECTOR
            if begin >= size:
                continue
            first = bisect_left(versions, last_cut, key=lambda version: version[0])
            if how == "all":
                chosen = len(versions)
            elif how == "none":
                chosen = 0
            elif how == "writes":
                chosen = max((i + 1 for i, (step, _) in enumerate(versions) if step in there), default=0)
            elif how == "torn":
                chosen = sum(step < torn_at for step, _ in versions)
                if any(step == torn_at for step, _ in versions) and rng.random() < 0.5:
                    chosen += 1
            elif how == "blocks":
                draw = block.setdefault(begin // 4096, rng.randint(0, 1 << 20))
                chosen = draw % (len(versions) + 1)
            else:
                chosen = rng.randint(0, len(versions))
            if first < len(versions) and versions[first][0] == last_cut:
                chosen = max(chosen, first + 1)
            if chosen:
                end = min(begin + SECTOR, size)
                data[begin:end] = versions[chosen - 1][1][: end - begin]
        return bytes(data)


HOW = ("all", "none", "writes", "torn", "blocks", "sectors")
"""What of the unflushed data is there. ``torn``: all before one write, and parts of that one."""


@dataclass(slots=True)
class Directory:
    durable: dict[str, int | None] = field(default_factory=dict)
    """Name -> number of the file, or None for a directory."""
    now: dict[str, int | None] = field(default_factory=dict)
    changes: list[tuple[dict[str, int | None], list[str]]] = field(default_factory=list)
    """What was not flushed: names that appeared and names that vanished, in one step."""

    def change(self, appeared: dict[str, int | None], vanished: list[str]) -> None:
        self.changes.append((appeared, vanished))
        _change(self.now, appeared, vanished)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.changes.clear()

    def names(self, rng: Random, how: str) -> dict[str, int | None]:
        found = dict(self.durable)
        reached = rng.randint(0, len(self.changes))
        for number, (appeared, vanished) in enumerate(self.changes):
            if how == "all" or (how == "prefix" and number < reached) or (how == "some" and rng.random() < 0.5):
                _change(found, appeared, vanished)
        return found


def _change(names: dict[str, int | None], appeared: dict[str, int | None], vanished: list[str]) -> None:
    for name in vanished:
        names.pop(name, None)
    names.update(appeared)


NAMES = ("all", "none", "prefix", "some")
"""Which of the unflushed changes of names have happened."""


class Disk:
    """What was written and flushed so far. Flushes at the sites ``broken`` are lies."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self._broken = broken
        self._files: dict[int, DiskFile] = {}
        self._directories: dict[str, Directory] = {".": Directory()}
        self._step = 0

    def apply(self, step: Step) -> None:
        self._step += 1
        match step:
            case ("create", str(place), str(name), int(number)):
                self._files[number] = DiskFile()
                self._directories[place].change({name: number}, [])
            case ("write", int(number), int(offset), bytes(data)):
                self._files[number].write(self._step, offset, data)
            case ("flush", int(number), int(offset), int(size), str(site)):
                if site not in self._broken:
                    self._files[number].flush(offset, offset + size)
            case ("sync", int(number), str(site)):
                if site not in self._broken:
                    self._files[number].sync()
            case ("lost", int(number), int(offset), int(size)):
                self._files[number].lose(offset, offset + size)
            case ("allocate", int(number), int(size)):
                self._files[number].grow(self._step, size)
            case ("truncate", int(number), int(size)):
                self._files[number].truncate(self._step, size)
            case ("rename", str(place), str(source), str(target)):
                directory = self._directories[place]
                directory.change({target: directory.now[source]}, [source])
            case ("unlink", str(place), str(name)):
                self._directories[place].change({}, [name])
            case ("mkdir", str(place), str(name)):
                self._directories[place].change({name: None}, [])
                self._directories[os.path.normpath(os.path.join(place, name))] = Directory()
            case ("sync_directory", str(place), str(site)):
                if site not in self._broken:
                    self._directories[place].sync()
            case ("mark", *_) | ("put", *_) | ("remove", *_):
                pass  # nothing of this disk
            case _:
                raise AssertionError(step)

    def image(self, rng: Random, data: str, names: str) -> Image:
        """One of the states the disk may be found in."""
        found: Image = {}
        waiting = ["."]
        while waiting:
            place = waiting.pop()
            found[place] = None
            for name, number in sorted(self._directories[place].names(rng, names).items()):
                path = os.path.normpath(os.path.join(place, name))
                if number is None:
                    waiting.append(path)
                else:
                    found[path] = self._files[number].content(rng, data)
        return found

    def images(self, rng: Random, number: int) -> Iterator[tuple[str, Image]]:
        """Some of the states, each with a word about how it came about; the extremes first."""
        for data, names in (("none", "none"), ("all", "all"), ("all", "none"), ("none", "all"))[:number]:
            yield f"data {data}, names {names}", self.image(rng, data, names)
        for _ in range(number - 4):
            data, names = rng.choice(HOW), rng.choice(NAMES)
            yield f"data {data}, names {names}", self.image(rng, data, names)


def objects_after(steps: Iterable[Step], before: Mapping[str, bytes]) -> dict[str, bytes]:
    """What an object storage has that had some objects before these steps."""
    found = dict(before)
    for step in steps:
        match step:
            case ("put", str(key), bytes(content)):
                found[key] = content
            case ("remove", str(key)):
                del found[key]
    return found


def write_image(image: Image, root: Path) -> None:
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).write_bytes(content)


def steps_of(image: Image) -> Iterator[Step]:
    """The steps that make a disk of an image, all of it flushed."""
    numbers = {path: number for number, path in numbered(image)}
    for path, content in sorted(image.items()):
        place, name = os.path.split(path)
        place = place or "."
        if path == ".":
            continue
        if content is None:
            yield "mkdir", place, name
        else:
            yield "create", place, name, numbers[path]
            yield "write", numbers[path], 0, content
            yield "sync", numbers[path], "image"
        yield "sync_directory", place, "image"


def numbered(image: Image) -> list[tuple[int, str]]:
    """The files of an image and numbers that no file created later gets."""
    return [(-count, path) for count, (path, content) in enumerate(sorted(image.items()), 1) if content is not None]
