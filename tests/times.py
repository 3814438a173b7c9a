"""Where the time of a test run goes, by file: a table for docs/newcomers.md.

make unit PYTEST='--durations=0 --durations-min=0.5' | tee run.log
python -m tests.times run.log
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROWS = 30
LINE = re.compile(r"^ *(?P<seconds>[\d.]+)s (?:call|setup|teardown) +(?P<file>[^:]+)::(?P<test>.+)$", re.M)


def table(log: str) -> str:
    """Return the slowest files in Markdown: seconds of all their tests, and the test that takes longest."""
    files: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for found in LINE.finditer(log):
        files[found["file"]].append((float(found["seconds"]), found["test"]))
    sums = {file: sum(seconds for seconds, _ in steps) for file, steps in files.items()}
    lines = ["| file | s | its longest test | s |", "|---|---|---|---|"]
    for file in sorted(sums, key=lambda file: -sums[file])[:ROWS]:
        longest, test = max(files[file])
        name = test.strip().replace("|", "\\|")
        lines.append(f"| `{file}` | {sums[file]:.0f} | `{name}` | {longest:.0f} |")
    return "\n".join([*lines, f"| all {len(sums)} files that take half a second | {sum(sums.values()):.0f} | | |"])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text(encoding="utf-8")))
