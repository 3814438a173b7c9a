"""The comparison: clients that have one right, or all but one, ask every question of a server; what they are answered.

python -m tests.kafka_front.access.comparison      # asks Apache Kafka and writes its answers to kafka_answers.json
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.java_server import SHORT_LIVED_JAVA, free_port
from benchmarks.kafka_broker import KafkaBroker
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.message import Message
from tests.kafka_front.access.questions import QUESTIONS, Home, Question, furnish
from tests.kafka_front.groups.wire_client import WireClient

ANSWERS = Path(__file__).with_name("kafka_answers.json")

Answers = dict[str, dict[str, str]]
"""Question -> rights -> answer."""

_KINDS = {"topic": 2, "group": 3, "cluster": 4, "transactional id": 5}
_OPERATIONS = {
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "act": 9,
    "describe configs": 10,
    "alter configs": 11,
    "write idempotently": 12,
}
_RIGHTS = {
    "topic": ("read", "write", "create", "delete", "alter", "describe", "describe configs", "alter configs"),
    "group": ("read", "delete", "describe", "describe configs", "alter configs"),
    "cluster": (
        "create",
        "delete",
        "alter",
        "describe",
        "act",
        "describe configs",
        "alter configs",
        "write idempotently",
    ),
    "transactional id": ("write", "describe"),
}
"""What Kafka's ACLs know of the kinds of resources that there are here (KIP-11, KIP-98, KIP-679)."""
_ALL, _DENY, _ALLOW, _LITERAL, _PREFIXED = 2, 2, 3, 3, 4
_CLUSTER = "kafka-cluster"
_DENIED = "AUTHORIZATION_FAILED"
_AT_ONCE = 4

Rule = tuple[str, int, int]
"""Kind, operation, permission."""


def _rights() -> Iterator[tuple[str, list[Rule]]]:
    everything: list[Rule] = [(kind, _ALL, _ALLOW) for kind in _KINDS]
    yield "everything", everything
    yield "nothing", []
    for kind, operations in _RIGHTS.items():
        for operation in operations:
            yield f"only {kind} {operation}", [(kind, _OPERATIONS[operation], _ALLOW)]
            yield f"all but {kind} {operation}", [*everything, (kind, _OPERATIONS[operation], _DENY)]


RIGHTS = dict(_rights())
USERS = {rights: f"u{number:02}" for number, rights in enumerate(RIGHTS)}


async def ask(address: str, *, patient: bool) -> Answers:
    """Ask a server, whose user ``root`` may do everything. ``patient``: it needs time to learn of some things."""
    async with _client(address, "root") as root:
        creations = [one for rights, user in USERS.items() for one in _creations(user, RIGHTS[rights])]
        made = await root.call(3, m.CreateAclsRequest(creations))
        assert {one.error_code for one in made.results} == {0}
    turn = asyncio.Semaphore(_AT_ONCE)
    answers = await asyncio.gather(*(_ask_as(address, user, turn, patient=patient) for user in USERS.values()))
    return {
        question.name: {rights: of[question.name] for rights, of in zip(USERS, answers, strict=True)}
        for question in QUESTIONS
    }


async def _ask_as(address: str, user: str, turn: asyncio.Semaphore, *, patient: bool) -> dict[str, str]:
    home, found = Home(f"{user}."), {}
    async with turn, _client(address, "root") as root, _client(address, user) as client:
        await furnish(root, home)
        for question in QUESTIONS:
            for attempt in count(1):
                answer = _answer(home, question, await client.call(question.version, question.request(home)))
                if not patient or attempt >= question.tries or "topic_id" in answer or _DENIED in answer:
                    break
                await asyncio.sleep(0.1)
            found[question.name] = answer
    return found


def _answer(home: Home, question: Question, told: Message) -> str:
    """What of an answer depends on rights; where all of a request is refused, that alone."""
    code = getattr(told, "error_code", 0)
    if code:
        return ErrorCode(code).name
    return "; ".join(sorted({one for one in _tokens(home, told) if _DENIED in one or not question.denials}))


@asynccontextmanager
async def _client(address: str, user: str) -> AsyncIterator[WireClient]:
    host, _, port = address.rpartition(":")
    async with WireClient(host, int(port)) as client:
        assert (await client.call(1, m.SaslHandshakeRequest("PLAIN"))).error_code == 0
        told = await client.call(2, m.SaslAuthenticateRequest(f"\0{user}\0{user}".encode()))
        assert told.error_code == 0, told.error_message
        yield client


def _creations(user: str, rules: list[Rule]) -> Iterator[m.CreateAclsRequest.AclCreation]:
    for kind, operation, permission in rules:
        name, pattern = (_CLUSTER, _LITERAL) if kind == "cluster" else (f"{user}.", _PREFIXED)
        yield m.CreateAclsRequest.AclCreation(_KINDS[kind], name, pattern, f"User:{user}", "*", operation, permission)


def _tokens(home: Home, message: Message, path: str = "") -> Iterator[str]:
    """What of an answer depends on rights: errors, the names of the client's own things, operations it is told of."""
    names = {topic_id: name for name, topic_id in home.ids.items()}
    for slot in message.__slots__:
        value, here = getattr(message, slot), f"{path}{slot}"
        if isinstance(value, Message):
            yield from _tokens(home, value, f"{here}.")
        elif isinstance(value, list):
            for row in value:
                if isinstance(row, Message):
                    if not _is_foreign(home, row):
                        yield here
                        yield from _tokens(home, row, f"{here}.")
                elif isinstance(row, str) and row.startswith(home.prefix):
                    yield f"{here}={row.removeprefix(home.prefix)}"
        elif slot.endswith("error_code"):
            if value:
                yield f"{here}={ErrorCode(value).name}"
        elif slot.endswith("authorized_operations"):
            if value != -(2**31):
                yield f"{here}={' '.join(str(bit) for bit in range(16) if value >> bit & 1)}"
        elif isinstance(value, str) and value.startswith(home.prefix):
            yield f"{here}={value.removeprefix(home.prefix)}"
        elif isinstance(value, bytes) and value in names:
            yield f"{here}={names[value].removeprefix(home.prefix)}"


def _is_foreign(home: Home, row: Message) -> bool:
    """Whether a row is about what another client has, or the server itself."""
    named = [value for slot in row.__slots__ if isinstance(value := getattr(row, slot), str)]
    others = re.compile(rf"(?!{re.escape(home.prefix)})u\d\d\.|__")
    return any(others.match(name) for name in named)


def kafka(directory: Path) -> KafkaBroker:
    """A broker, not started, with the users of the comparison."""
    broker = KafkaBroker(directory, heap="512m", options=SHORT_LIVED_JAVA)
    inner, controller = free_port(), free_port()
    users = " ".join(f'user_{user}="{user}"' for user in ("root", *USERS.values()))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker.settings = {
        "node.id": "0",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{broker.port},INNER://127.0.0.1:{inner},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"SASL_PLAINTEXT://127.0.0.1:{broker.port},INNER://127.0.0.1:{inner}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:root",
        "share.coordinator.state.topic.num.partitions": "4",
        "auto.create.topics.enable": "false",
    }
    return broker


def written(answers: Answers) -> str:
    """The table: of each question what who has all rights and who has none is answered, and whoever hears otherwise."""
    table: dict[str, dict[str, Any]] = {}
    for question, found in answers.items():
        others: dict[str, list[str]] = {}
        for rights, usual in _usual(found).items():
            if found[rights] != usual:
                others.setdefault(found[rights], []).append(rights)
        table[question] = {
            "everything": found["everything"],
            "nothing": found["nothing"],
            "others": {answer: ", ".join(rights) for answer, rights in others.items()},
        }
    return json.dumps(table, indent=1) + "\n"


def recorded() -> Answers:
    """Kafka's answers, as they are in the table."""
    answers: Answers = {}
    for question, row in json.loads(ANSWERS.read_text()).items():
        answers[question] = _usual(row)
        for answer, others in row["others"].items():
            answers[question].update(dict.fromkeys(others.split(", "), answer))
    return answers


def _usual(found: Mapping[str, str]) -> dict[str, str]:
    """The answer with each of the rights, if the one right that is there, or missing, makes no difference."""
    return {
        rights: found["nothing" if rights == "nothing" or rights.startswith("only") else "everything"]
        for rights in RIGHTS
    }


class Difference(NamedTuple):
    """``place``: API and rights."""

    place: tuple[str, str]
    text: str


def differences(found: Answers, wanted: Answers) -> list[Difference]:
    """Where a server answers otherwise than is wanted."""
    return [
        Difference((question.partition(",")[0], rights), f"{question} with {rights}: {answer!r}, not {other!r}")
        for question, answers in found.items()
        for rights, answer in answers.items()
        if answer != (other := wanted[question][rights])
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="access-") as directory, kafka(Path(directory)) as broker:
        ANSWERS.write_text(written(asyncio.run(ask(broker.bootstrap, patient=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
