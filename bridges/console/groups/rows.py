"""Rows of groups, as the node that coordinates them knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from bridges.auth import Operation, Principal, Resource, ResourceKind
from bridges.catalog.views.groups import GroupName, GroupSummary, SharedPlace, records_behind
from bridges.console.history.rings import Span
from bridges.console.history.sampling import RECORDS, trend_of

if TYPE_CHECKING:
    from bridges.catalog.progress import Committed
    from bridges.catalog.views.groups import Place
    from bridges.console.host import Host
    from bridges.log.remote.readable import ReadableLog

_TOPICS = 20
"""Most topics per group in a page of groups."""
_STEP = 500
"""Positions that are examined before a row's source yields a None."""
_NOBODY = "Empty"
"""State of a group that has committed positions and no members."""


class GroupRows:
    """The rows of groups and of their positions."""

    def __init__(self, node: Host) -> None:
        self._node = node

    def sees_topic(self, principal: Principal, topic: str) -> bool:
        return self._node.authorizer.allows(principal, Operation.DESCRIBE, Resource(ResourceKind.TOPIC, topic))

    def short(self, principal: Principal, name: GroupName) -> Iterator[dict[str, object] | None]:
        """Yield the row of a group in a page of groups, with its first topics."""
        for row in self.whole(principal, name):
            if row is not None:
                topics = cast("list[str]", row["topics"])
                row["topic_count"] = len(topics)
                row["topics"] = topics[:_TOPICS]
            yield row

    def whole(self, principal: Principal, name: GroupName) -> Iterator[dict[str, object] | None]:
        """Yield the row of a group, with its topics that ``principal`` may see; None where much was done."""
        node = self._node
        fronts = node.progress.summaries(name)
        if not fronts and not node.progress.has_positions(name):
            yield None  # it has just gone
            return
        topics: set[str] = set()
        total = Total()
        partitions = 0
        for number, (place, committed) in enumerate([*node.progress.of_group(name).items()]):
            if self.sees_topic(principal, place[0]):
                log = node.logs.in_use(*place)
                total.add(None if log is None else behind(log, committed.offset))
                topics.add(place[0])
                partitions += 1
            if number % _STEP == _STEP - 1:
                yield None
        if (shared := node.recorder.shared.get(name)) is not None:
            seen = [one for one in shared if self.sees_topic(principal, one.topic)]
            for one in seen:
                total.add(self.lag_of(one))
            topics = {one.topic for one in seen}
            partitions = len(seen)
        yield {
            **_head(name, fronts),
            "topics": sorted(topics),
            "partitions": partitions,
            **total.as_json,
            **late(node, name, total),
            "trend": rounded(node.recorder.trend(name)),
        }

    def in_topic(self, name: GroupName, places: Iterable[Place]) -> Iterator[dict[str, object] | None]:
        """Yield the row of a group in a list of a topic's groups: its lag in ``places``, and the trend."""
        node, total = self._node, Total()
        fronts = node.progress.summaries(name)
        read: list[Place] = []
        seconds, exact = 0.0, True
        for place in places:
            committed = node.progress.committed(name, *place)
            if committed is not None:
                row = self.aged(self.position(place, committed, None))
                total.add(row["lag"])
                if (row["lag_seconds"] or 0.0) > seconds:
                    seconds, exact = row["lag_seconds"], row["lag_exact"]
                read.append(place)
            yield None
        trend = trend_of((yield from node.recorder.lag_in(name, read, RECORDS, Span.HOUR)))
        yield {
            **_head(name, fronts),
            "partitions": len(read),
            **total.as_json,
            "lag_seconds": seconds,
            "lag_exact": exact,
            "trend": rounded(trend),
        }

    def aged(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with its lag in seconds."""
        log = self._node.logs.in_use(row["topic"], row["partition"]) if row["lag"] else None
        seconds, exact = (0.0, True) if log is None else self._node.recorder.age(log, row["offset"])
        known = row["lag"] is not None
        return {**row, "lag_seconds": round(seconds, 1) if known else None, "lag_exact": exact if known else None}

    def lag_of(self, shared: SharedPlace) -> int | None:
        """Return how many records are not finished; None while the partition is not in use here."""
        log = self._node.logs.in_use(shared.topic, shared.partition)
        return None if log is None else shared.lag(log.log_start_offset, log.high_watermark)

    def delivered(self, shared: SharedPlace) -> dict[str, Any]:
        """Return the fields of a position for a partition of which several members share the records."""
        return {
            "offset": shared.start,
            "lag": self.lag_of(shared),
            "acquired": shared.acquired,
            "deliveries": shared.deliveries,
        }

    def position(self, place: Place, committed: Committed | None, member_id: str | None) -> dict[str, Any]:
        node = self._node
        log = node.logs.in_use(*place)
        return {
            "topic": place[0],
            "partition": place[1],
            "exists": node.catalog.stream_of(*place) is not None,
            "offset": None if committed is None else committed.offset,
            "start_offset": None if log is None else log.log_start_offset,
            "end_offset": None if log is None else log.high_watermark,
            "last_stable_offset": None if log is None else log.last_stable_offset,
            "lag": None if log is None or committed is None else behind(log, committed.offset),
            "member_id": member_id,
            "metadata": "" if committed is None else committed.metadata,
            "commit_ms": None if committed is None else committed.commit_ms,
        }


def rounded(trend: float | None) -> float | None:
    return None if trend is None else round(trend, 3)


def main_of(fronts: Mapping[str, GroupSummary]) -> str | None:
    """Return the front whose state is shown for a group in several fronts: the one with the most members."""
    return min(fronts, key=lambda front: (-fronts[front].members, front), default=None)


def summary_of(fronts: Mapping[str, GroupSummary]) -> dict[str, object]:
    main = main_of(fronts)
    summary = None if main is None else fronts[main]
    return {
        "fronts": sorted(fronts),
        "kind": "" if summary is None else summary.kind,
        "state": _NOBODY if summary is None else summary.state,
        "protocol_type": "" if summary is None else summary.protocol_type,
    }


def _head(name: GroupName, fronts: Mapping[str, GroupSummary]) -> dict[str, object]:
    """Return the fields of every row of a group."""
    members = sum(summary.members for summary in fronts.values())
    return {"group": name[1], "space": name[0], **summary_of(fronts), "members": members}


class Total:
    """The sum of the known lags, None without any, and the number of unknown ones."""

    __slots__ = ("_known", "_sum", "_unknown")

    def __init__(self) -> None:
        self._sum = self._known = self._unknown = 0

    def add(self, lag: int | None) -> None:
        if lag is None:
            self._unknown += 1
        else:
            self._sum += lag
            self._known += 1

    @property
    def as_json(self) -> dict[str, object]:
        return {"lag": self._sum if self._known else None, "unknown_lags": self._unknown}


def late(node: Host, name: GroupName, total: Total) -> dict[str, object]:
    """Return the lag in seconds as last sampled; for a group without a sample 0, or None if it has fallen
    behind since.
    """
    seen = node.recorder.lags.get(name)
    seconds, exact = (None if total.as_json["lag"] else 0.0, True) if seen is None else seen[1:]
    return {"lag_seconds": None if seconds is None else round(seconds, 1), "lag_exact": exact}


def behind(log: ReadableLog, committed: int) -> int:
    return records_behind(committed, log.log_start_offset, log.high_watermark)
