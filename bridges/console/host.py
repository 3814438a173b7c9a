"""The node as the console needs it: protocols that the node implements, so that the node can import the console."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.memory.budget import MemoryBudget
from bridges.auth import Authorizer
from bridges.auth.authenticator import Authenticator
from bridges.catalog.access_rules import AccessRules
from bridges.catalog.client_quotas import ClientQuotas
from bridges.catalog.group_view import GroupDirectory
from bridges.catalog.job_view import JobDirectory
from bridges.catalog.progress import Progress
from bridges.catalog.topics import Catalog
from bridges.catalog.transaction_view import TransactionDirectory
from bridges.log.compaction.cleaner import Cleaner
from bridges.log.logs import Logs
from bridges.log.remote.partitions import Partitions
from bridges.metrics import Metrics

if TYPE_CHECKING:
    from bridges.cluster.ownership import Membership
    from bridges.console.group_states import GroupStates
    from bridges.console.sampling import Recorder
    from bridges.console.topic_sizes import TopicSizes


class Limits(Protocol):
    """Bounds of the console's requests."""

    @property
    def http_connections(self) -> int: ...
    @property
    def http_request_ms(self) -> int: ...
    @property
    def http_line_bytes(self) -> int: ...
    @property
    def batch_inflated_bytes(self) -> int: ...


class AllMetrics(Protocol):
    """The metrics of all workers (see :class:`bridges.node.worker_metrics.WorkerMetrics`)."""

    def rendered(self, shows: Callable[[Mapping[str, str]], bool]) -> AsyncGenerator[bytes, None]: ...


class Host(Protocol):
    """The node that a console shows."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def logs(self) -> Logs: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def cleaner(self) -> Cleaner: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def authenticator(self) -> Authenticator: ...
    @property
    def authorizer(self) -> Authorizer: ...
    @property
    def access_rules(self) -> AccessRules | None: ...
    @property
    def cluster(self) -> Membership:
        """Return the members of the cluster and the owners of its slots."""

    @property
    def client_quotas(self) -> ClientQuotas: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def worker_metrics(self) -> AllMetrics | None:
        """Return the metrics of all workers, on the first of several workers; otherwise None."""

    @property
    def budget(self) -> MemoryBudget: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def static_config(self) -> Mapping[str, str]: ...
    @property
    def group_directories(self) -> Mapping[str, GroupDirectory]:
        """Return the groups of each front that has groups."""

    @property
    def job_directories(self) -> Mapping[str, JobDirectory]:
        """Return the jobs that report to each front."""

    @property
    def transaction_directories(self) -> Mapping[str, TransactionDirectory]:
        """Return the transactional ids that each front coordinates."""

    @property
    def group_states(self) -> GroupStates:
        """Return the access to the coordinators' states of groups."""

    @property
    def topic_sizes(self) -> TopicSizes:
        """Return the access to the sizes of topics at other nodes."""

    @property
    def recorder(self) -> Recorder:
        """Return the recorder of the last day's traffic."""

    @property
    def not_promised(self) -> Sequence[tuple[str, bool]]:
        """Return the promises that the node does not make, as sentences, and whether only because of a setting."""

    @property
    def phase(self) -> Enum: ...
    @property
    def is_serving(self) -> bool: ...
    @property
    def failure(self) -> str | None:
        """Return why the process cannot do its work any more, None if it can."""

    def describe(self) -> dict[str, object]:
        """Return the node's identity, its addresses, and how it stores data."""
