"""The cut-over: from the moment at which the source takes no more writes, the target has everything, or nothing
happens.

Steps, each of which may be repeated: reconcile (topics, partitions, new records), lag, fence (the source is closed to
writers, or is proved to be silent), drain (until both sides end at the same offsets and no transaction is open),
verify, settings that only one protocol sees, groups, hand over (one durable step at the target), smoke read, report. An
interrupted run begins anew; topics that are handed over stay so.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from spark_pipeline.core.errors import FoundDifferences, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Positions, endpoint
from spark_pipeline.jobs.migrate.copying import Route
from spark_pipeline.jobs.migrate.run import Runner, is_handed_over
from spark_pipeline.jobs.migrate.settings import carry_settings, sync_groups
from spark_pipeline.jobs.migrate.state import MigrationState
from spark_pipeline.jobs.migrate.verify import Verifier

_POLL_S = 0.25
_SMOKE_OFFSETS = 100


class NotYet(PipelineError):
    """A condition of the cut-over does not hold; nothing was handed over."""


class Differs(FoundDifferences):
    """The target differs from the source; nothing was handed over."""

    def __init__(self, message: str, content: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.content = dict(content)


@dataclass(frozen=True, slots=True)
class CutoverOptions:
    """The options of a cut-over.

    ``max_lag``: most offsets that may be missing when the source is fenced. ``fence``: a command that closes the source
    to writers. ``silence_s``: how long the source must then not have grown. ``drain_s``: the longest wait for that.
    ``abort_open``: transactions that the source never ended are aborted at the target.
    """

    max_lag: int = 100_000
    fence: str | None = None
    silence_s: float = 10.0
    drain_s: float = 300.0
    level: int = 2
    threads: int = 2
    abort_open: bool = False


class Cutover:
    """One cut-over; ``tell`` is called with a sentence for each step."""

    def __init__(
        self,
        state: MigrationState,
        route: Route,
        runner: Runner,
        options: CutoverOptions,
        tell: Callable[[str], object],
    ) -> None:
        self._state = state
        self._route = route
        self._runner = runner
        self._options = options
        self._tell = tell
        self._done: dict[str, Any] = {}

    def run(self, *, dry: bool = False) -> dict[str, Any]:
        """Cut over, or with ``dry`` only report whether it could begin. Raises NotYet, Differs, PipelineError."""
        plan = self._state.plan
        if not is_handed_over(self._runner.target, plan):
            if dry:
                self._dry()
                return self._make_report()
            self._reconcile()
            self._fence()
            positions = self._drain()
            self._verify()
            self._carry()
            self._hand_over(positions)
        else:
            self._tell("the topics were handed over before")
        self._smoke()
        return self._make_report()

    def _make_report(self) -> dict[str, Any]:
        plan = self._state.plan
        return {
            "migration": plan.migration,
            "plan": plan.digest,
            "steps": self._done,
            "not_carried": [asdict(one) for one in plan.not_carried],
        }

    def _step(self, name: str, **facts: Any) -> None:
        self._done[name] = facts
        self._state.step_done(f"cutover:{name}", **facts)

    # --- before -----------------------------------------------------------------------------------------------------

    def _dry(self) -> None:
        plan = self._state.plan
        positions = self._runner.source.positions(plan.partitions)
        lag = 0
        for topic in plan.topics:
            lag += self._runner.target.state(topic.name).lag(positions)
        opened = sorted(str(part) for part, at in positions.items() if at.stable < at.high_watermark)
        self._done["dry_run"] = {
            "lag": lag,
            "lag_is_small_enough": lag <= self._options.max_lag,
            "open_transactions": opened,
        }

    def _reconcile(self) -> None:
        self._tell("reconcile: copying what is new")
        self._runner.take()
        done = self._runner.run(follow=False)
        if done.lag > self._options.max_lag:
            raise NotYet(f"the source is {done.lag} offsets ahead, more than {self._options.max_lag}: follow it first")
        self._step("reconcile", lag=done.lag)

    def _fence(self) -> None:
        command = self._options.fence
        if command is None:
            return
        self._tell(f"fence: {command}")
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotYet(f"the fence {command!r} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        self._step("fence", command=command)

    # --- the last offsets -------------------------------------------------------------------------------------------

    def _drain(self) -> dict[TopicPartition, Positions]:
        """Copy until the source has been silent for long enough; return the positions at its end."""
        options = self._options
        self._tell(f"drain: the source has to be silent for {options.silence_s:g} s")
        before = {part: at.high_watermark for part, at in self._runner.positions().items()}
        # Both times run from the first reading of positions: the length of the first round says nothing about writers.
        silent_since = time.monotonic()
        deadline = silent_since + options.drain_s + options.silence_s
        waited_for: list[TopicPartition] = []
        while True:
            done = self._runner.round()
            positions = self._runner.positions()
            ends = {part: at.high_watermark for part, at in positions.items()}
            now = time.monotonic()
            if ends != before:
                before, silent_since = ends, now
            opened = [part for part, at in positions.items() if at.stable < at.high_watermark]
            if opened and opened != waited_for and not options.abort_open:
                self._tell(
                    f"drain: transactions are open in {_list_parts(opened)}: waiting {deadline - now:.0f} s for their "
                    "producers to end them; --abort-open-transactions ends them"
                )
                waited_for = opened
            silent = now - silent_since >= options.silence_s
            if silent and not done.lag and (not opened or options.abort_open):
                self._step(
                    "drain",
                    silent_seconds=round(now - silent_since, 3),
                    offsets=sum(ends.values()),
                    open_transactions=sorted(map(str, opened)),
                )
                return positions
            if now > deadline:
                if silent and opened:
                    raise NotYet(
                        f"transactions are open at the source in {_list_parts(opened)}: have their "
                        "producers end them, or give --abort-open-transactions"
                    )
                if silent:
                    raise NotYet(f"{done.lag} offsets were not copied after {options.drain_s:g} s: give it longer")
                raise NotYet(f"the source still took writes after {options.drain_s:g} s: close it to writers first")
            time.sleep(min(_POLL_S, options.silence_s / 4 or _POLL_S))

    def _verify(self) -> None:
        options = self._options
        self._tell(f"verify: level {options.level}")
        content = Verifier(self._state.plan, self._route, options.level, options.threads).run()
        for one in content["settings"]:
            at = f"{one['source']} at the source, {one['target'] or 'not set'} here"
            self._tell(f"{one['topic']}: {one['key']} is {at}")
        self._state.report("verify", content)
        if content["differences"]:
            first = content["differences"][0]
            raise Differs(
                f"{first['topic']}-{first['partition']} differs at offset {first['offset']}: {first['reason']}", content
            )
        told = ("level", "partitions", "batches", "bytes", "records", "settings")
        self._step("verify", **{key: content[key] for key in told})

    def _carry(self) -> None:
        changed = carry_settings(self._state.plan, self._runner.source, self._route)
        if changed is not None:
            self._tell("settings: codecs, attributes, consumers")
            self._step("settings", topics=changed)
        self._tell("groups: positions")
        done = sync_groups(self._state.plan, self._runner.source, self._runner.target)
        self._state.report("groups", done)
        members = [name for name, one in done["groups"].items() if one["members"]]
        self._step("groups", set=done["set"], kept=done["kept"], ahead=done["ahead"], with_members_at_source=members)

    def _hand_over(self, positions: Mapping[TopicPartition, Positions]) -> None:
        now = self._runner.positions()
        grown = [part for part, at in now.items() if at.high_watermark != positions[part].high_watermark]
        if grown:
            raise NotYet(f"the source has taken writes in {grown[0]} after it was silent: nothing was handed over")
        ends: dict[str, list[int]] = {}
        for part in sorted(positions):
            ends.setdefault(part.topic, []).append(positions[part].high_watermark)
        self._tell("hand over")
        answer = self._runner.target.cutover(ends, abort_open=self._options.abort_open)
        self._step("hand over", topics=len(ends), transactions_aborted=answer["transactions_aborted"])

    # --- after ------------------------------------------------------------------------------------------------------

    def _smoke(self) -> None:
        """Read the last records of every partition at the target."""
        self._tell("smoke read")
        with closing(endpoint(self._route.target, self._route.target_options)) as target:
            parts = self._state.plan.partitions
            read = 0
            for part, at in target.positions(parts).items():
                start = max(at.start, at.stable - _SMOKE_OFFSETS)
                wanted = part.range(start, at.stable)
                read += sum(batch.num_rows for batch in target.read(wanted, Columns(("offset", "timestamp"))))
        self._step("smoke read", partitions=len(parts), records=read)


def _list_parts(parts: Sequence[TopicPartition]) -> str:
    some = ", ".join(sorted(map(str, parts))[:5])
    return some if len(parts) <= 5 else f"{some} and {len(parts) - 5} more"
