"""The node as its console and its metrics see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.run.stalls import LoopStalls
    from bridges.auth import Authorizer
    from bridges.auth.authenticator import Authenticator
    from bridges.catalog.access_rules import AccessRules
    from bridges.catalog.client_quotas import ClientQuotas
    from bridges.catalog.database.sql import Database
    from bridges.catalog.progress import Progress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.views.groups import GroupDirectory
    from bridges.catalog.views.jobs import JobDirectory
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.clients import Clients
    from bridges.cluster.ownership import Membership, Others
    from bridges.console.clients.everywhere import ClientsEverywhere
    from bridges.console.groups.members import GroupMembers
    from bridges.console.groups.states import GroupStates
    from bridges.console.history.sampling import Recorder
    from bridges.console.problems.rules import Problem
    from bridges.console.problems.watch import Watch
    from bridges.console.schemas.decoding import Schemas
    from bridges.console.topics.emptying import TopicTrims
    from bridges.console.topics.sizes import TopicSizes
    from bridges.life import Life
    from bridges.log.compaction.cleaner import Cleaner
    from bridges.log.logs import Logs
    from bridges.log.remote.partitions import Partitions
    from bridges.metric_text import Shows
    from bridges.metrics import Metrics
    from bridges.net.quotas import Quotas
    from sbp_back.embedded import Embedded


class Host(Struct):
    """The parts of a node that its console and its metrics show."""

    life: Life
    describe: Callable[[], dict[str, object]]
    """Returns the node's identity, its addresses, and how it stores data."""
    not_promised: Sequence[tuple[str, bool]]
    """The promises that the node does not make, as sentences, and whether only because of a setting."""
    static_config: Mapping[str, str]
    batch_inflated_bytes: int
    http_line_bytes: int
    metrics: Metrics
    stalls: LoopStalls
    budget: MemoryBudget
    db: Database
    embedded: Embedded | None
    cluster: Membership
    """The members of the cluster, and the owners of its slots."""
    scrape_workers: Callable[[Shows], AsyncGenerator[bytes, None]] | None
    """Returns the metrics of all workers, on the first of several workers; otherwise None."""
    authenticator: Authenticator
    authorizer: Authorizer
    access_rules: AccessRules | None
    client_quotas: ClientQuotas
    quotas: Quotas
    catalog: Catalog
    progress: Progress
    logs: Logs
    partitions: Partitions
    cleaner: Cleaner
    group_directories: Callable[[], Mapping[str, GroupDirectory]]
    """Returns the groups of each front that has groups."""
    job_directories: Callable[[], Mapping[str, JobDirectory]]
    """Returns the jobs that report to each front."""
    transaction_directories: Callable[[], Mapping[str, TransactionDirectory]]
    """Returns the transactional ids that each front coordinates."""
    group_states: GroupStates
    group_members: GroupMembers
    topic_sizes: TopicSizes
    topic_trims: TopicTrims
    clients: Clients
    """The clients of this node."""
    clients_everywhere: ClientsEverywhere
    """The clients of all nodes."""
    recorder: Recorder
    watch: Watch
    peers: Others
    """Requests to other nodes, and answers to theirs."""
    check: Callable[[], Awaitable[Sequence[Problem]]]
    """Returns what the doctor finds at this node, at most a minute ago, and that its data was restored."""
    schemas: Schemas | None
    """The schemas of the registry, None without one."""
    connect: Callable[[str], Mapping[str, str]]
    """Returns what a client is configured with, by listener, if it reaches this node at the given host."""
