"""librdkafka built from the npm package that carries its sources and its tests.

The package is pinned by version and by the integrity hash of the registry; sources and build stay below
`.tools/librdkafka` and are never committed. Needs npm, a C and C++ compiler, make and the headers of zlib and OpenSSL
(libssl-dev, zlib1g-dev); the zstd codec and some tests need libzstd-dev and rapidjson-dev too.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools" / "librdkafka"
PACKAGE = "@confluentinc/kafka-javascript"
VERSION = "1.10.1"
INTEGRITY = "sha512-KVePUBn21EqCVP9mfxzEuM3SYJHHEF7X+iiC2e43QQgDSyEaksInmCGooT3w5q+cNAdkSCrK71j0ICfqoSqZLw=="
INSIDE = "package/deps/librdkafka"
OPTIONS = ("--disable-gssapi", "--disable-curl", "--no-download")
HEADERS = {
    "openssl/ssl.h": "libssl-dev",
    "zlib.h": "zlib1g-dev",
    "zstd.h": "libzstd-dev",  # optional: the zstd codec
    "rapidjson/document.h": "rapidjson-dev",  # optional: five tests skip themselves without it
}
DRIVER_SOURCE = Path(__file__).resolve().parent / "driver" / "driver.c"


class BuildFailed(Exception):
    """A step of fetching or building ended badly; the message carries the end of its output."""


@dataclass(frozen=True, slots=True)
class Library:
    """Where a built librdkafka lies."""

    root: Path

    @property
    def tests(self) -> Path:
        """Directory of the test-runner and of the test sources."""
        return self.root / "tests"

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment with the library path set."""
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.root / 'src'}:{self.root / 'src-cpp'}"}


def _step(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def _fetch(directory: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise BuildFailed("npm is needed once to fetch the librdkafka sources")
    _step([npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"], directory)
    (archive,) = directory.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise BuildFailed(f"{PACKAGE}@{VERSION} has the hash sha512-{digest}, expected {INTEGRITY}")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    archive.unlink()
    return directory / INSIDE


def missing_headers() -> list[str]:
    """Debian packages of headers that the compiler does not find; without the optional ones something is left out."""
    compiler = shutil.which("c++") or "c++"
    missing = []
    for header, package in HEADERS.items():
        probe = subprocess.run(
            [compiler, "-E", "-x", "c++", "-"],
            input=f"#include <{header}>\n",
            text=True,
            capture_output=True,
            check=False,
        )
        if probe.returncode != 0:
            missing.append(package)
    return missing


def install(tools: Path = TOOLS, *, jobs: int = 2) -> Library:
    """Return the built library and test-runner, building them once per version and set of headers."""
    tools.mkdir(parents=True, exist_ok=True)
    lacking = missing_headers()
    if "zlib1g-dev" in lacking or "libssl-dev" in lacking:
        raise BuildFailed(f"headers are missing: apt-get install {' '.join(lacking)}")
    key = hashlib.sha256(repr((INTEGRITY, OPTIONS, sorted(HEADERS), lacking)).encode()).hexdigest()[:12]
    home = tools / f"{VERSION}-{key}"
    with (tools / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build once
        if (home / "built").exists():
            return Library(home / INSIDE)
        if home.exists():
            shutil.rmtree(home)
        # librdkafka's make files keep absolute paths, so it is built where it stays; "built" marks a finished one.
        home.mkdir()
        root = _fetch(home)
        _step(["./configure", *OPTIONS], root)
        _step(["nice", "make", f"-j{jobs}", "libs"], root)
        _step(["nice", "make", f"-j{jobs}", "-C", "tests", "test-runner"], root)
        (home / "built").touch()
    return Library(home / INSIDE)


def build_driver(library: Library, tools: Path = TOOLS) -> Path:
    """Compile the benchmark driver against the library; returns the program's path."""
    source = DRIVER_SOURCE.read_bytes()
    key = hashlib.sha256(source + str(library.root).encode()).hexdigest()[:12]
    program = tools / f"driver-{key}"
    if program.exists():
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise BuildFailed("a C compiler is needed to build the benchmark driver")
    with tempfile.NamedTemporaryFile(dir=tools, delete=False) as scratch:
        partial = Path(scratch.name)
    libraries = library.root / "src"
    link = ["-isystem", str(libraries), f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lrdkafka", "-lpthread", "-lm"]
    strict = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    _step([compiler, *strict, "-o", str(partial), str(DRIVER_SOURCE), *link], tools)
    partial.chmod(0o755)
    partial.rename(program)
    return program


def main() -> int:
    """Build and print where."""
    library = install()
    print(library.root)
    if lacking := missing_headers():
        print(f"built without: {' '.join(lacking)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
