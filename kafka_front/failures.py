"""The error response of each API: what a client gets when its whole request failed (docs/protocols/kafka.md, rule 69).

A response repeats the items of the request, since clients look their own items up in the answer and treat a missing one
as a bug of the broker. An API without such items and without a top-level error code has no such answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.message import Message

_RESOURCES = "resource_type resource_name"
_SHARE_STATES = ["results=topics topic_id > partitions partition"]
_ITEMS: dict[int, list[str]] = {
    ApiKey.PRODUCE: ["responses=topic_data topic_id name > partition_responses=partition_data index base_offset:-1"],
    ApiKey.LIST_OFFSETS: ["topics name > partitions partition_index"],
    ApiKey.METADATA: ["topics name topic_id"],
    ApiKey.OFFSET_COMMIT: ["topics topic_id name > partitions partition_index"],
    ApiKey.FIND_COORDINATOR: ["coordinators=coordinator_keys key= node_id:-1 port:-1"],
    ApiKey.DESCRIBE_GROUPS: ["groups group_id="],
    ApiKey.CREATE_TOPICS: ["topics name"],
    ApiKey.DELETE_TOPICS: ["responses=topic_names name=", "responses=topics name topic_id"],
    ApiKey.DELETE_RECORDS: ["topics name > partitions partition_index low_watermark:-1"],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ["topics topic > partitions partition"],
    ApiKey.ADD_PARTITIONS_TO_TXN: [
        "results_by_topic_v3_and_below=v3_and_below_topics name > results_by_partition=partitions partition_index="
    ],
    ApiKey.WRITE_TXN_MARKERS: [
        "markers producer_id > topics name > partitions=partition_indexes partition_index=",
    ],
    ApiKey.TXN_OFFSET_COMMIT: ["topics topic_id name > partitions partition_index"],
    ApiKey.CREATE_ACLS: ["results=creations"],
    ApiKey.DELETE_ACLS: ["filter_results=filters"],
    ApiKey.DESCRIBE_CONFIGS: [f"results=resources {_RESOURCES}"],
    ApiKey.ALTER_CONFIGS: [f"responses=resources {_RESOURCES}"],
    ApiKey.CREATE_PARTITIONS: ["results=topics name"],
    ApiKey.DELETE_GROUPS: ["results=groups_names group_id="],
    ApiKey.ELECT_LEADERS: [
        "replica_election_results=topic_partitions topic > partition_result=partitions partition_id="
    ],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [f"responses=resources {_RESOURCES}"],
    ApiKey.ALTER_CLIENT_QUOTAS: ["entries > entity entity_type entity_name"],
    ApiKey.DESCRIBE_PRODUCERS: ["topics name > partitions=partition_indexes partition_index="],
    ApiKey.DESCRIBE_TRANSACTIONS: ["transaction_states=transactional_ids transactional_id="],
    ApiKey.CONSUMER_GROUP_DESCRIBE: ["groups=group_ids group_id="],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ["topics name"],
    ApiKey.SHARE_GROUP_DESCRIBE: ["groups=group_ids group_id="],
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATES,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATES,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATES,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATES,
    ApiKey.STREAMS_GROUP_DESCRIBE: ["groups=group_ids group_id="],
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ["groups group_id"],
}
"""The lists of an API's response that have one item for each item of a list of the request.

"a=b x y=z w= v:-1 > c": list ``a`` has an item for each of the request's ``b`` (the same name without "="), which
repeats ``x``, has the request's ``z`` as ``y``, the request's item itself as ``w``, and -1 as ``v``; each of the items
has a list ``c``.
"""


def response(key: int, version: int, request: Any, code: int, message: str | None = None) -> Message | None:
    """Return the response that reports ``code`` for all of ``request``; None if the protocol has no such response."""
    failure = _Failure(code, message)
    complete, lists = _COMPLETE.get(key), _ITEMS.get(key, ())
    answer: Message = getattr(m, APIS[key].name + "Response")()
    if request is None if complete or lists else "error_code" not in answer.__slots__:
        return None
    failure.set(answer)
    for items in lists:
        failure.repeat(items, request, answer)
    if complete is not None:
        complete(answer, request, version, failure)
    return answer


class _Failure(NamedTuple):
    code: int
    message: str | None

    def set(self, answer: Message) -> None:
        """Set the error of an answer or of one of its items."""
        code, message = self
        for name, value in (("error_code", code), ("partition_error_code", code), ("error_message", message)):
            if name in answer.__slots__:
                setattr(answer, name, value)

    def repeat(self, items: str, asked: Any, answer: Message) -> None:
        """Add the items of a request, or of one of its items, to the answer."""
        there, here, repeats, fixed, inner = _parse(items)
        message: Any = type(answer)
        kind, answers = _kind(message, there), getattr(answer, there)
        for one in getattr(asked, here) or ():
            item = kind()
            self.set(item)
            for name, source in repeats:
                value = getattr(one, source) if source else one
                if value is not None:
                    setattr(item, name, value)
            for name, number in fixed:
                setattr(item, name, number)
            if inner:
                self.repeat(inner, one, item)
            answers.append(item)


@cache
def _parse(items: str) -> tuple[str, str, list[tuple[str, str]], list[tuple[str, int]], str]:
    """Return the list's name in the answer and in the request, the repeated fields with their sources ("": the item
    itself), the fields with one value, and the inner list."""
    line, _, inner = items.partition(" > ")
    names, *fields = line.split()
    there, _, here = names.partition("=")
    repeated = [field.partition("=") for field in fields if ":" not in field]
    fixed = [field.split(":") for field in fields if ":" in field]
    repeats = [(name, source if renamed else name) for name, renamed, source in repeated]
    return there, here or there, repeats, [(name, int(number)) for name, number in fixed], inner


@cache
def _kind(message: type[Message], field: str) -> type[Message]:
    """Return the class of the items of a list."""
    kind: type[Message] = get_args(get_type_hints(message.__init__, vars(m))[field])[0]
    return kind


def _fetch(answer: m.FetchResponse, request: m.FetchRequest, version: int, failure: _Failure) -> None:
    if version < 7:
        items = "responses=topics topic > partitions partition_index=partition high_watermark:-1"
        failure.repeat(items, request, answer)
        for topic in answer.responses:
            for one in topic.partitions:
                one.records = b""


def _offset_fetch(
    answer: m.OffsetFetchResponse, request: m.OffsetFetchRequest, version: int, failure: _Failure
) -> None:
    if version >= 8:
        failure.repeat("groups group_id", request, answer)
    elif version < 2:
        items = "topics name > partitions=partition_indexes partition_index= committed_offset:-1"
        failure.repeat(items, request, answer)


def _find_coordinator(answer: m.FindCoordinatorResponse, *_: object) -> None:
    answer.node_id = answer.port = -1


def _join_group(answer: m.JoinGroupResponse, request: m.JoinGroupRequest, version: int, _: _Failure) -> None:
    answer.generation_id, answer.member_id = -1, request.member_id
    # Before version 7 the protocol name may not be null (docs/protocols/kafka.md, rule 12).
    answer.protocol_name = None if version >= 7 else ""


def _init_producer_id(answer: m.InitProducerIdResponse, *_: object) -> None:
    answer.producer_id = answer.producer_epoch = -1


def _describe_log_dirs(answer: m.DescribeLogDirsResponse, _: object, version: int, failure: _Failure) -> None:
    if version < 3:
        answer.results.append(m.DescribeLogDirsResponse.DescribeLogDirsResult(failure.code))


def _alter_log_dirs(
    answer: m.AlterReplicaLogDirsResponse, request: m.AlterReplicaLogDirsRequest, version: int, failure: _Failure
) -> None:
    for wanted in request.dirs:
        failure.repeat("results=topics topic_name=name > partitions partition_index=", wanted, answer)


def _alter_scram(
    answer: m.AlterUserScramCredentialsResponse,
    request: m.AlterUserScramCredentialsRequest,
    version: int,
    failure: _Failure,
) -> None:
    failure.repeat("results=deletions user=name", request, answer)
    failure.repeat("results=upsertions user=name", request, answer)
    answer.results = list({one.user: one for one in answer.results}.values())


_COMPLETE: dict[int, Callable[[Any, Any, int, _Failure], None]] = {
    ApiKey.FETCH: _fetch,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_log_dirs,
}
"""Complete the answers whose items depend on the version, or that have more than errors and items."""
