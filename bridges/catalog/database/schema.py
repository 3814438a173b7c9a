"""Tables of the node's database (``node.db``), as a list of migrations.

Never change a migration that was released: append one.
"""

from __future__ import annotations

from anabranch_kit.sql.connection import migration
from anabranch_kit.sql.row_sums import make_table

APPLICATION_ID = 0x416E6162
"""Marks the file as ours (the letters ``Anab``)."""

make_cluster = migration(
    """CREATE TABLE cluster_state (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            slots INTEGER NOT NULL,
            version INTEGER NOT NULL,
            next_start INTEGER NOT NULL
        ) STRICT""",
    """CREATE TABLE cluster_nodes (
            start INTEGER PRIMARY KEY,
            node_id INTEGER NOT NULL,
            state TEXT NOT NULL,
            beats INTEGER NOT NULL,
            ended_by INTEGER NOT NULL,
            server_id INTEGER NOT NULL,
            addresses TEXT NOT NULL,
            rack TEXT NOT NULL,
            version INTEGER NOT NULL
        ) STRICT""",
    "CREATE TABLE cluster_slots (slot INTEGER PRIMARY KEY, owner INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT",
)
"""The tables of a cluster's nodes and the slots they own (bridges/cluster/tables.py). ``start`` numbers one run of a
node.
"""

extend_cluster = migration(
    # The node that should own the slot; -1: any.
    "ALTER TABLE cluster_slots ADD COLUMN pin INTEGER NOT NULL DEFAULT -1",
    "ALTER TABLE cluster_nodes ADD COLUMN drained INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE cluster_drained (node_id INTEGER PRIMARY KEY) STRICT",
    "ALTER TABLE cluster_nodes ADD COLUMN stores INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE cluster_state ADD COLUMN says INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE cluster_state ADD COLUMN stores INTEGER NOT NULL DEFAULT 1",
)
"""The requests of operators (bridges/cluster/wishes.py), and the versions of nodes (bridges/cluster/versions.py)."""

MIGRATIONS = (
    migration(
        # Single values: cluster id, counters.
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID",
        """CREATE TABLE topics (
            name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, created_ms INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE partitions (
            topic TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            idx INTEGER NOT NULL,
            stream_id INTEGER NOT NULL UNIQUE,
            PRIMARY KEY (topic, idx)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE topic_config (
            topic TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (topic, key)
        ) STRICT, WITHOUT ROWID""",
        # Names of topics in other protocols; a name belongs to one topic.
        """CREATE TABLE topic_names (
            protocol TEXT NOT NULL,
            name TEXT NOT NULL,
            topic TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            PRIMARY KEY (protocol, name)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX topic_names_by_topic ON topic_names (topic)",
        "CREATE TABLE node_config (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
        # Written before streams are created, and deleted by the commit that needs the streams. A row that is found at
        # the start means that streams from first_stream_id on may belong to no topic.
        """CREATE TABLE stream_intents (
            id INTEGER PRIMARY KEY, first_stream_id INTEGER NOT NULL, count INTEGER NOT NULL
        ) STRICT""",
        # Streams that nothing refers to any more; their data must still be deleted.
        "CREATE TABLE doomed_streams (stream_id INTEGER PRIMARY KEY) STRICT",
        # Consumer positions, and each front's state of a group.
        """CREATE TABLE positions (
            grp TEXT NOT NULL,
            topic TEXT NOT NULL,
            partition INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            leader_epoch INTEGER NOT NULL,
            metadata TEXT NOT NULL,
            commit_ms INTEGER NOT NULL,
            expire_ms INTEGER NOT NULL,
            PRIMARY KEY (grp, topic, partition)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX positions_by_topic ON positions (topic)",
        "CREATE TABLE groups (grp TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT, WITHOUT ROWID",
    ),
    migration(
        # Derived state of partition logs, so that opening one need not read it from its start.
        """CREATE TABLE partition_snapshots (
            stream_id INTEGER PRIMARY KEY, log_offset INTEGER NOT NULL, state BLOB NOT NULL
        ) STRICT""",
    ),
    migration(
        # The placement driver of the stream ids in the other tables (bridges/catalog/database/pd_identity.py): one row
        # or none.
        "CREATE TABLE placement_driver (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL) STRICT",
    ),
    migration(
        # Groups get a space, positions and states a front (bridges/catalog/progress.py). Before, there was one front.
        "ALTER TABLE positions RENAME TO former_positions",
        """CREATE TABLE positions (
            space TEXT NOT NULL,
            grp TEXT NOT NULL,
            topic TEXT NOT NULL,
            partition INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            leader_epoch INTEGER NOT NULL,
            metadata TEXT NOT NULL,
            commit_ms INTEGER NOT NULL,
            expire_ms INTEGER NOT NULL,
            front TEXT NOT NULL,
            PRIMARY KEY (space, grp, topic, partition)
        ) STRICT, WITHOUT ROWID""",
        "INSERT INTO positions SELECT 'consumers', *, 'kafka' FROM former_positions",
        "DROP TABLE former_positions",
        "CREATE INDEX positions_by_topic ON positions (topic)",
        "ALTER TABLE groups RENAME TO former_groups",
        """CREATE TABLE groups (
            front TEXT NOT NULL,
            space TEXT NOT NULL,
            grp TEXT NOT NULL,
            state BLOB NOT NULL,
            PRIMARY KEY (space, grp, front)
        ) STRICT, WITHOUT ROWID""",
        "INSERT INTO groups SELECT 'kafka', 'consumers', * FROM former_groups",
        "DROP TABLE former_groups",
    ),
    migration(
        # Starts of partitions whose backend does not know them (bridges/log/state/log_starts.py).
        "CREATE TABLE log_starts (stream_id INTEGER PRIMARY KEY, start INTEGER NOT NULL) STRICT",
        # Streams of deleted topics that the backend cannot delete: they are left there with their data.
        "CREATE TABLE left_streams (stream_id INTEGER PRIMARY KEY) STRICT",
    ),
    migration(
        # Unreadable offsets that an operator has declared lost: readers find a gap there (bridges/log/damage/skips.py).
        """CREATE TABLE skipped_offsets (
            stream_id INTEGER NOT NULL,
            first_offset INTEGER NOT NULL,
            end_offset INTEGER NOT NULL,
            reason TEXT NOT NULL,
            skipped_ms INTEGER NOT NULL,
            PRIMARY KEY (stream_id, first_offset)
        ) STRICT, WITHOUT ROWID""",
    ),
    migration(
        # Versions of the tables that fronts bring (bridges/catalog/database/front_tables.py).
        "CREATE TABLE front_versions (front TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    ),
    migration(
        # Positions that become valid with a transaction (bridges/catalog/pending_positions.py), in the order they came.
        """CREATE TABLE pending_positions (
            seq INTEGER PRIMARY KEY,
            front TEXT NOT NULL,
            txn TEXT NOT NULL,
            space TEXT NOT NULL,
            grp TEXT NOT NULL,
            topic TEXT NOT NULL,
            partition INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            leader_epoch INTEGER NOT NULL,
            metadata TEXT NOT NULL,
            commit_ms INTEGER NOT NULL,
            expire_ms INTEGER NOT NULL,
            UNIQUE (space, grp, topic, partition, front, txn)
        ) STRICT""",
        "CREATE INDEX pending_positions_by_transaction ON pending_positions (front, txn)",
        "CREATE INDEX pending_positions_by_topic ON pending_positions (topic)",
    ),
    migration(
        # The lineage of partitions (bridges/catalog/topics/lineage.py). A partition without sealed_epoch is active; one
        # with sealed_epoch and without sealed_end has still to be sealed at its log. Before, every partition had the
        # whole range of keys.
        "ALTER TABLE topics ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE partitions ADD COLUMN key_low BLOB NOT NULL DEFAULT x'0000000000000000000000000000000000'",
        "ALTER TABLE partitions ADD COLUMN key_high BLOB NOT NULL DEFAULT x'0100000000000000000000000000000000'",
        "ALTER TABLE partitions ADD COLUMN made_epoch INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE partitions ADD COLUMN sealed_epoch INTEGER",
        "ALTER TABLE partitions ADD COLUMN sealed_end INTEGER",
    ),
    migration(
        # The kind of topic (bridges/catalog/topics/topic.py, TopicKind). Before, all were users' topics.
        "ALTER TABLE topics ADD COLUMN kind TEXT NOT NULL DEFAULT 'user'",
    ),
    migration(
        # Starts of partitions that were truncated at a position in bytes, and the record that contains the position
        # (bridges/log/byte_positions/starts.py).
        """CREATE TABLE byte_starts (
            stream_id INTEGER PRIMARY KEY,
            start INTEGER NOT NULL,
            record INTEGER NOT NULL,
            position INTEGER NOT NULL
        ) STRICT""",
    ),
    migration(
        # Topics that a migration fills, or has filled (bridges/catalog/topics/topic.py).
        """CREATE TABLE imports (
            topic TEXT PRIMARY KEY REFERENCES topics (name) ON DELETE CASCADE,
            migration TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            begun_ms INTEGER NOT NULL,
            handed_over_ms INTEGER
        ) STRICT, WITHOUT ROWID""",
    ),
    migration(
        # First partition numbers for protocols that never reuse a number under a name, and the last numbers of deleted
        # topics (bridges/catalog/topics/former.py). ``deletion`` counts up.
        "ALTER TABLE topics ADD COLUMN first_number INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE former_numbers (deletion INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, "
        "next INTEGER NOT NULL) STRICT",
    ),
    migration(
        # The migration's own description of what it imports.
        "ALTER TABLE imports ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
    ),
    migration(
        # The front that owns each number of a stored format or kind of writers
        # (bridges/catalog/database/front_tables.py).
        "CREATE TABLE front_numbers (what TEXT NOT NULL, number INTEGER NOT NULL, front TEXT NOT NULL, "
        "PRIMARY KEY (what, number)) STRICT, WITHOUT ROWID",
    ),
    migration(
        # Sealed partitions of which everything was trimmed: they count against no limit (bridges/node/spent.py).
        "ALTER TABLE partitions ADD COLUMN spent INTEGER NOT NULL DEFAULT 0",
    ),
    make_table,
    migration(
        # Single values are text, numbers included: only SQLite has columns of any type.
        "UPDATE meta SET value = CAST(value AS TEXT)",
    ),
    migration(
        # Access rules (bridges/catalog/access_rules.py).
        "CREATE TABLE access_rules (kind TEXT NOT NULL, pattern TEXT NOT NULL, name TEXT NOT NULL, "
        "principal TEXT NOT NULL, host TEXT NOT NULL, operation TEXT NOT NULL, allow INTEGER NOT NULL, "
        "PRIMARY KEY (kind, pattern, name, principal, host, operation, allow)) STRICT, WITHOUT ROWID",
    ),
    make_cluster,
    migration(
        # Changes by the nodes of one database to state that each has in memory (bridges/catalog/database/following.py).
        "CREATE TABLE changes_version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL) STRICT",
        "INSERT INTO changes_version VALUES (1, 0)",
        "CREATE TABLE changes (version INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, origin TEXT NOT NULL, "
        "PRIMARY KEY (version, kind, name)) STRICT, WITHOUT ROWID",
        # The node that makes the streams: each node cleans up after its own former runs.
        "ALTER TABLE stream_intents ADD COLUMN node INTEGER NOT NULL DEFAULT 0",
    ),
    migration(
        # How far each partition's log is compacted (bridges/log/compaction/cleaned_logs.py).
        "CREATE TABLE compacted_logs (stream_id INTEGER PRIMARY KEY, clean_offset INTEGER NOT NULL, "
        "due_ms INTEGER NOT NULL, passed_ms INTEGER NOT NULL, settled INTEGER NOT NULL) STRICT",
    ),
    migration(
        # Quotas of users and clients (bridges/catalog/client_quotas.py).
        "CREATE TABLE client_quotas (user_name TEXT NOT NULL, client_id TEXT NOT NULL, ip TEXT NOT NULL, "
        "quota TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (user_name, client_id, ip, quota)) STRICT, "
        "WITHOUT ROWID",
    ),
    migration(
        # Aborted transactions of partitions that have many (bridges/log/transactions/aborted_blocks.py).
        """CREATE TABLE aborted_blocks (
            stream_id INTEGER NOT NULL, last_offset INTEGER NOT NULL, number INTEGER NOT NULL, behind INTEGER NOT NULL,
            epoch INTEGER NOT NULL, least_first INTEGER NOT NULL, ranges BLOB NOT NULL,
            PRIMARY KEY (stream_id, last_offset)
        ) STRICT""",
    ),
    migration(
        # The partitions whose owners a topic's partitions follow (bridges.catalog.topics.topic.Beside), as JSON.
        "ALTER TABLE topics ADD COLUMN beside TEXT NOT NULL DEFAULT ''",
    ),
    extend_cluster,
    migration(
        # The partition whose owner also owns this one (bridges.catalog.topics.lineage.PartitionInfo); -1: none.
        "ALTER TABLE partitions ADD COLUMN beside INTEGER NOT NULL DEFAULT -1",
    ),
    migration(
        # The hash slot of a group, by which a node reads what comes to it (bridges/catalog/progress.py); -1: not stored
        # yet, since the node that stored the row is alone or of an earlier release.
        "ALTER TABLE positions ADD COLUMN slot INTEGER NOT NULL DEFAULT -1",
        "CREATE INDEX positions_by_slot ON positions (slot)",
        "ALTER TABLE groups ADD COLUMN slot INTEGER NOT NULL DEFAULT -1",
        "CREATE INDEX groups_by_slot ON groups (slot)",
    ),
)
HAS_CHECKSUMS = frozenset({"partition_snapshots"})
"""Tables whose rows have checksums of their own (bridges/log/state/snapshots.py): damage there costs only time."""
