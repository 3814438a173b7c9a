"""The doctor's checks of a running node, as problems for its console."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bridges.console.problems.rules import Problem, Severity
from bridges.node import finding

if TYPE_CHECKING:
    from bridges.node.floors.plan import Plan
    from bridges.node.storage.data_dir import Restored

_KEPT_S = 60.0
_SEVERITIES = {finding.Severity.WRONG: Severity.CRITICAL, finding.Severity.WARNING: Severity.WARNING}


class Checks:
    """Runs the checks in a thread, once a minute at most."""

    def __init__(self, plan: Plan, restored: Restored | None) -> None:
        self._plan = plan
        self._found: list[Problem] = []
        self._until = 0.0
        self._checking = asyncio.Lock()
        self._restored: list[Problem] = []
        if restored is not None:
            sentence = f"the data was restored at {restored.restored} from a backup of {restored.backup_taken}"
            remedy = "What was acknowledged after the backup is gone; clients that have seen it are ahead of this node."
            node_id = plan.settings.node.id
            self._restored.append(
                Problem(severity=Severity.NOTE, sentence=sentence, remedy=remedy, node=node_id, about="restored")
            )

    async def check(self) -> list[Problem]:
        """Return what is wrong, or not as it should be."""
        async with self._checking:
            if time.monotonic() >= self._until:
                self._found = await asyncio.to_thread(self._run)
                self._until = time.monotonic() + _KEPT_S
        return self._restored + self._found

    def _run(self) -> list[Problem]:
        settings = self._plan.settings
        return [
            Problem(
                severity=_SEVERITIES[one.severity],
                sentence=f"{one.about}: {one.sentence}",
                remedy=one.remedy,
                node=settings.node.id,
                about=one.about,
            )
            for one in self._plan.checkup(settings)
            if one.severity in _SEVERITIES
        ]
