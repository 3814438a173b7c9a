"""The entry point of ``python -m bridges``, which is the command ``anabranch``."""

from __future__ import annotations

from bridges.commands.cli import main

main(prog_name="anabranch")
