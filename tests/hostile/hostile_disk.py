"""What the bare disk has somebody wait: 4 KiB, written and flushed again and again, beside somebody else's bytes.

    python hostile_disk.py DIRECTORY --bytes-per-second 200000000 --seconds 5

Two processes with nothing in common but the disk; one writes a megabyte with each flush, at the rate that it is told.
Prints a line of JSON: how many flushes of 4 KiB there were, and the longest in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SMALL = 4096
_LARGE = 1 << 20
_PAUSE_S = 0.002
_FILE_BYTES = 256 * _LARGE
"""A file is written from its beginning again behind so many bytes."""


def flushed(path: Path, size: int, limit: int, seconds: float, rate: float) -> tuple[int, float]:
    """Write ``size`` bytes at a time, ``rate`` bytes a second; how many times, and the longest in seconds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, limit)
        data = os.urandom(size)
        count, longest = 0, 0.0
        began = now = time.monotonic()
        while now < began + seconds:
            os.pwritev(fd, [data], count * size % limit, os.RWF_DSYNC)
            count += 1
            longest = max(longest, time.monotonic() - now)
            time.sleep(max(0.0, began + count * size / rate - time.monotonic()))
            now = time.monotonic()
        return count, longest
    finally:
        os.close(fd)


def floor(directory: Path, bytes_per_second: float, seconds: float) -> float:
    """The longest wait of anybody's 4 KiB in seconds, in processes of their own."""
    command = [sys.executable, str(Path(__file__).resolve()), str(directory)]
    command += ["--bytes-per-second", str(bytes_per_second), "--seconds", str(seconds)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60 + 20 * seconds)
    return float(json.loads(told.stdout)["longest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bytes-per-second", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as scratch:
        here = Path(scratch)
        child = 0 if args.bytes_per_second < _LARGE else os.fork()
        if args.bytes_per_second >= _LARGE and child == 0:
            flushed(here / "large", _LARGE, _FILE_BYTES, args.seconds, args.bytes_per_second)
            os._exit(0)
        count, longest = flushed(here / "small", _SMALL, 16 * _SMALL, args.seconds, _SMALL / _PAUSE_S)
        if child and os.waitpid(child, 0)[1]:
            raise SystemExit("the other writer failed")
        print(json.dumps({"flushes": count, "longest": longest}), flush=True)


if __name__ == "__main__":
    main()
