"""The options of both sides that a plan was made with: later commands take them from beside the plan.

Stored are the words of the command line: the file of ``--options`` by its path, ``KEY=@FILE`` as it is. A secret in
clear text is not stored, and has to be given again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_pipeline.core.files import json_bytes, make_directory, replace
from spark_pipeline.jobs.command_options import is_secret
from spark_pipeline.jobs.migrate.plan import PlanError
from spark_pipeline.jobs.migrate.state import state_directory

_SIDES = ("source_option", "target_option")


def remember_options(plan: Path, *, options_file: Path | None, **given: Any) -> None:
    """Store the options that the plan at ``plan`` was made with."""
    kept: dict[str, Any] = {side: [word for word in given[side] if not is_secret(word)] for side in _SIDES}
    kept["options_file"] = None if options_file is None else str(options_file.resolve())
    directory = state_directory(plan)
    make_directory(directory)
    replace(directory / "options.json", json_bytes(kept))


def recall_options(plan: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command together with those that the plan was made with; the command's override."""
    path = state_directory(plan) / "options.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return options
    except ValueError as error:
        raise PlanError(f"{path} is damaged: {error}") from error
    found: dict[str, Any] = {side: (*kept[side], *options[side]) for side in _SIDES}
    if options["options_file"] is None and kept["options_file"] is not None:
        found["options_file"] = Path(kept["options_file"])
    return {**options, **found}
