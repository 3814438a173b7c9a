"""Tests look at what a client, the API or a metric sees: reads of privates of other objects are few, with reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PRIVATE = re.compile(r"(?:.*\.)?_[A-Za-z]\w*")
LOOKS_LIKE_ONE = re.compile(r"(?<!\bself)(?<!\bcls)\._[A-Za-z]|\"(?:[\w.]+\.)?_[A-Za-z]\w*\"|import .*\b_[A-Za-z]")
PATCHES = {"setattr", "getattr", "delattr", "object"}
DOCUMENTED = {"_replace", "_make", "_asdict", "_fields", "_exit", "_getframe"}
"""Names of Python's own libraries that are public in spite of the underscore."""
LIBRARIES = {"KafkaError", "common"}
"""A class and a module of foreign libraries: not the product's privates."""

FAULT = "brings about a fault or a moment that no client can choose: a death, a late answer, a defect"
SAFEGUARD = "leaves a safeguard out, which another test must notice"
RIG = "puts the test's own threads, timers, clock or library in the place of real ones"
LIBRARY = "a private of a foreign library, not of the product"
BOUND = "a bound of memory that only the sizes of the parts show"
PART = "one part without the front or node around it"
SPEED = "smaller pieces than the product's, so that few records take many steps"

NEEDED: dict[str, tuple[int, str]] = {
    "anabranch_kit/net/test_outbox.py": (1, RIG),
    "anabranch_kit/run/test_deadlines.py": (2, BOUND),
    "anabranch_kit/sql/test_postgres.py": (3, FAULT),
    "anabranch_kit/sql/wire_server.py": (2, RIG),
    "bridges/auth/test_passwords_and_users.py": (1, FAULT),
    "bridges/catalog/test_following.py": (2, SAFEGUARD),
    "bridges/cluster/postgres.py": (4, RIG),
    "bridges/cluster/test_marks.py": (4, FAULT),
    "bridges/cluster/test_taking_over.py": (3, FAULT),
    "bridges/commands/test_contexts.py": (1, PART),
    "bridges/console/records/test_json_records.py": (1, SPEED),
    "bridges/console/records/test_rendering.py": (1, PART),
    "bridges/console/schemas/test_registry.py": (3, BOUND),
    "bridges/console/schemas/test_worker.py": (2, BOUND),
    "bridges/console/test_pages.py": (2, FAULT),
    "bridges/log/aborted_lives.py": (2, FAULT),
    "bridges/log/test_compaction.py": (3, FAULT),
    "bridges/log/test_lost_slots.py": (1, FAULT),
    "bridges/net/test_quotas.py": (1, FAULT),
    "bridges/net/test_tls_memory.py": (4, LIBRARY),
    "bridges/node/test_watchdog.py": (1, LIBRARY),
    "bridges/test_backends.py": (1, FAULT),
    "external/test_backend_tickets.py": (1, PART),
    "foreign_crashes.py": (3, LIBRARY),
    "kafka_front/groups/test_consumer_migration_simulated.py": (1, SAFEGUARD),
    "kafka_front/groups/test_group_machine.py": (1, BOUND),
    "kafka_front/groups/test_group_service.py": (2, FAULT),
    "kafka_front/groups/test_group_timeouts.py": (2, FAULT),
    "kafka_front/share/test_dead_letters.py": (3, FAULT),
    "kafka_front/test_delegation_tokens.py": (1, FAULT),
    "kafka_front/test_fetch_places.py": (1, RIG),
    "kafka_front/test_session.py": (1, FAULT),
    "kafka_front/test_wire_codec.py": (1, RIG),
    "kafka_front/transactions/test_coordinator.py": (1, SAFEGUARD),
    "kafka_front/transactions/test_several.py": (2, SAFEGUARD),
    "kill_steps.py": (4, FAULT),
    "pravega_front/service/test_carrying_out.py": (4, PART),
    "pravega_front/service/test_owners.py": (2, PART),
    "pravega_front/service/test_routing.py": (9, PART),
    "pravega_front/test_no_call_left.py": (1, FAULT),
    "sbp_back/client/test_sbp_client.py": (1, FAULT),
    "sbp_back/range_server/object_log/object_harness.py": (4, RIG),
    "sbp_back/range_server/object_log/offload_rig.py": (6, RIG),
    "sbp_back/range_server/object_log/test_object_store.py": (7, FAULT),
    "sbp_back/range_server/object_log/test_offload.py": (5, SAFEGUARD),
    "sbp_back/range_server/object_log/test_offload_power_loss.py": (6, SAFEGUARD),
    "sbp_back/range_server/object_log/test_range_objects.py": (6, FAULT),
    "sbp_back/range_server/store/power_rig.py": (1, RIG),
    "sbp_back/range_server/store/test_store_power_loss.py": (2, SAFEGUARD),
    "sbp_back/range_server/store/test_store_replacing.py": (1, SAFEGUARD),
    "sbp_back/range_server/test_local_appends.py": (1, FAULT),
    "sbp_back/range_server/test_loss.py": (1, FAULT),
    "sbp_back/range_server/test_range_server.py": (1, FAULT),
    "sbp_back/test_backend_power.py": (2, SAFEGUARD),
    "sbp_document/test_document_timeouts.py": (2, FAULT),
    "spark_pipeline/endpoints/test_kafka_answers.py": (5, LIBRARY),
    "spark_pipeline/endpoints/test_tickets.py": (2, FAULT),
    "spark_pipeline/jobs/test_migrate_kafka.py": (2, LIBRARY),
    "spark_pipeline/jobs/test_upgrade.py": (2, FAULT),
    "test_foreign_crashes.py": (2, LIBRARY),
    "ydb_topic_front/service/test_read_sessions.py": (1, FAULT),
    "ydb_topic_front/service/test_transaction_crashes.py": (2, FAULT),
}
"""File -> number of reads of privates that it needs, and what for. Lower a number when its reads become fewer."""


def private_reads(source: str) -> list[tuple[int, str]]:
    """Return line and name of each read, import or patch of a private of another object.

    A name that the file itself defines is its own.
    """
    tree = ast.parse(source)
    own = DOCUMENTED.union(_defined(tree))
    named = ((line, name.rpartition(".")[2]) for line, name in _reads(tree) if PRIVATE.fullmatch(name))
    return sorted((line, name) for line, name in named if name not in own)


def _reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=ast.Name(id=name)) if name in LIBRARIES:
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.ImportFrom(names=imported):
                yield from ((node.lineno, alias.name) for alias in imported)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in PATCHES:
                constants = (one.value for one in node.args if isinstance(one, ast.Constant))
                yield from ((node.lineno, one) for one in constants if isinstance(one, str))
            case _:
                continue


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                continue


def found_in(root: Path) -> dict[str, list[tuple[int, str]]]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if LOOKS_LIKE_ONE.search(source) and (reads := private_reads(source)):
            found[str(path.relative_to(root))] = reads
    return found


def test_tests_read_no_privates_without_a_reason() -> None:
    found = found_in(TESTS)
    more = {file: reads for file, reads in found.items() if len(reads) > NEEDED.get(file, (0, ""))[0]}
    assert not more, "assert on what a client, the API or a metric sees, or give the product a public reading"
    assert all(reason for _, reason in NEEDED.values())


def test_reads_of_privates_are_found() -> None:
    source = """
from product.room import _helper, public
class Own:
    def __init__(self, other):
        self._mine = other._theirs
    def same(self, other):
        return other._mine
def test(monkeypatch, row, thing):
    super()._above
    row._replace(a=1)
    thing._state._part
    monkeypatch.setattr("product.room._LIMIT", 1)
    monkeypatch.setattr(thing, "_limit", 1)
"""
    assert [name for _, name in private_reads(source)] == [
        "_helper",
        "_theirs",
        "_part",
        "_state",
        "_LIMIT",
        "_limit",
    ]
