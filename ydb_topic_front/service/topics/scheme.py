"""DescribePath, ListDirectory, MakeDirectory and RemoveDirectory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import in_turns
from bridges.auth import NODE, Operation, Resource, ResourceKind
from bridges.auth.rules import ANY, Pattern, RuleFilter
from ydb_topic_front.service import paths
from ydb_topic_front.service.connecting import EVERYBODY
from ydb_topic_front.service.paths import PROTOCOL, scheme_error
from ydb_topic_front.service.topics.describe import fill_entry
from ydb_topic_front.wire.messages import messages

if TYPE_CHECKING:
    from bridges.auth.rules import Rule
    from bridges.catalog.topics.topic import Topic
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_DescribeResult = messages["Ydb.Scheme.DescribePathResult"]
_ListResult = messages["Ydb.Scheme.ListDirectoryResult"]
_Entry = messages["Ydb.Scheme.Entry"]

_PERMISSIONS = {
    Operation.READ: "ydb.granular.select_row",
    Operation.WRITE: "ydb.granular.update_row",
    Operation.DESCRIBE: "ydb.granular.describe_schema",
    Operation.ALTER: "ydb.granular.alter_schema",
    Operation.DELETE: "ydb.granular.remove_schema",
    Operation.ALL: "ydb.generic.full",
}
"""YDB's names of what access rules allow."""
_ENTRY_BYTES = 300
"""Approximate memory for an entry in an answer."""


class Scheme:
    """Handlers of the scheme service. They raise YdbError or an error of the database."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._directories = service.directories

    async def describe(self, request: Any, call: GrpcCall) -> Any:
        """Describe the entry at a path."""
        result = _DescribeResult()
        await self._fill(result.self, request.path, call)
        return result

    async def list(self, request: Any, call: GrpcCall) -> Any:
        """List a directory's entries by name, without the topics that the client may not describe."""
        service = self._service
        result = _ListResult()
        await self._fill(result.self, request.path, call)
        children = await self._directories.children(service.name_of(call, request.path))
        service.admit(call, _ENTRY_BYTES * len(children))
        principal, allows = service.principal(call), service.node.authorizer.allows
        async for name in in_turns(sorted(children)):
            topic = children[name]
            if topic is None:
                fill_entry(result.children.add(), name, _Entry.DIRECTORY)
            elif allows(principal, Operation.DESCRIBE, Resource(ResourceKind.TOPIC, topic.name)):
                fill_entry(result.children.add(), name, _Entry.TOPIC, topic.created_ms)
        return result

    async def make(self, request: Any, call: GrpcCall) -> None:
        """Create a directory; succeeds if it exists."""
        path = self._service.name_of(call, request.path)
        self._service.require(call, Operation.CREATE, NODE)
        if not path:
            return
        paths.new_name(path)  # a name that no topic could have cannot contain topics
        for one in (*paths.parents(path), path):
            if self._topic(one) is not None:
                raise scheme_error(f"'{one}' is a topic, and cannot be a directory")
        await self._directories.make(path)

    async def remove(self, request: Any, call: GrpcCall) -> None:
        """Remove an empty directory."""
        path = self._service.name_of(call, request.path)
        self._service.require(call, Operation.DELETE, NODE)
        if not path:
            raise scheme_error("the database cannot be removed")
        if not await self._directories.has(path):
            raise scheme_error(f"there is no directory '{request.path}'")
        if await self._directories.children(path):
            raise scheme_error(f"directory '{request.path}' is not empty")
        await self._directories.remove(path)

    def _topic(self, path: str) -> Topic | None:
        topic = self._service.catalog.by_name(PROTOCOL, path)
        return topic if topic is not None and self._service.catalog.topics.get(topic.name) is topic else None

    async def _fill(self, entry: Any, path: str, call: GrpcCall) -> None:
        service = self._service
        below = service.name_of(call, path)
        name = paths.last(paths.whole(below, service.database(call)))
        if not below:
            service.require(call, Operation.DESCRIBE, NODE)
            fill_entry(entry, name, _Entry.DATABASE)
            return
        if service.node.authorizer.allows(service.principal(call), Operation.DESCRIBE, NODE):
            is_directory = self._topic(below) is None and await self._directories.has(below)
            if is_directory:
                fill_entry(entry, name, _Entry.DIRECTORY)
                return
        topic = service.topic_at(call, path, Operation.DESCRIBE)
        fill_entry(entry, name, _Entry.TOPIC, topic.created_ms)
        rules = service.node.access_rules
        if rules is not None and service.node.authorizer.allows(service.principal(call), Operation.DESCRIBE, NODE):
            about = RuleFilter(kind=ResourceKind.TOPIC, name=topic.name, matching=True, host=ANY, allow=True)
            found = await rules.find(about)
            own = [rule for rule in found if rule.pattern is Pattern.LITERAL and rule.name == topic.name]
            _fill_permissions(entry.permissions, own)
            _fill_permissions(entry.effective_permissions, found)


def _fill_permissions(target: Any, rules: Iterable[Rule]) -> None:
    """Fill in the permissions that rules allow, by subject."""
    permissions: dict[str, list[str]] = {}
    for rule in rules:
        if rule.operation in _PERMISSIONS:
            permissions.setdefault(rule.principal.partition(":")[2], []).append(_PERMISSIONS[rule.operation])
    for subject, names in permissions.items():
        target.add(subject=EVERYBODY if subject == ANY else subject, permission_names=sorted(set(names)))


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    scheme = Scheme(service)
    registry.call("DescribePath", scheme.describe)
    registry.call("ListDirectory", scheme.list)
    registry.call("MakeDirectory", scheme.make)
    registry.call("RemoveDirectory", scheme.remove)
