"""What every fuzz target does when it is run: write its seeds (`--seeds DIRECTORY`), or let atheris look for inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def run(one_input: Callable[[bytes], None], seeds: Callable[[], Mapping[str, bytes]]) -> None:
    """``seeds`` gives inputs by file name; ``one_input`` raises what nobody expects of it."""
    if sys.argv[1:2] == ["--seeds"]:
        directory = Path(sys.argv[2])
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in seeds().items():
            (directory / name).write_bytes(data)
        return
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
