"""``python -m bridges`` is the command ``anabranch``."""

from __future__ import annotations

from bridges.commands.cli import main

main(prog_name="anabranch")
