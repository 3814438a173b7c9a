"""The script that spark-submit starts: it runs the command line in the process that Spark has made."""

from __future__ import annotations

if __name__ == "__main__":
    from bridges.commands.cli import main

    main(prog_name="anabranch")
