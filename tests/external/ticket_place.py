"""A node with users and rules over servers of their own that demand tickets, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from bridges.auth.tickets import KeysOfOthers, TicketOffice
from bridges.auth.tokens import load_keys
from tests.conftest import TEST_SETTINGS
from tests.external.cluster import NODE_TIMEOUT_MS, PATIENCE, SERVER_SETTINGS, Server
from tests.node_process import ANY, NodeProcess
from tests.node_users import login, rule, ruled, with_users

USERS = ("root", "alice", "eve")
MONTH_S = 30 * 86_400
TICKETS = {"sbp.tickets": "true"}


class TicketPlace:
    """``root`` may do everything, others what rules allow."""

    def __init__(self, path: Path) -> None:
        self.keys = path / "keys.json"
        load_keys(self.keys, int(time.time()), MONTH_S, MONTH_S)
        given = {"auth.keys_file": str(self.keys), **TICKETS}
        self.pd = Server("pd", path / "pd", [], {**SERVER_SETTINGS, **given})
        self.server = Server("range-server", path / "rs", [], {**SERVER_SETTINGS, **given})
        data = path / "node"
        with_users(data, USERS)
        self.settings = {
            **TEST_SETTINGS,
            **given,
            "sbp.mode": "external",
            "sbp.timeout_ms": str(NODE_TIMEOUT_MS),
            "auth.required": "true",
            "auth.rules": "deny",
            "auth.super_users": "User:root",
        }
        self.node = NodeProcess(data, settings=self.settings, listen={"kafka": ANY, "console": "off", "pipeline": ANY})

    def start(self) -> None:
        self.pd.start()
        self.server.arguments = ["--pd", self.pd.address]
        self.server.start()
        self.settings["sbp.pd"] = self.node.settings["sbp.pd"] = self.pd.address
        self.node.start()

    def dispose(self) -> None:
        for process in (self.node, self.server, self.pd):
            process.dispose()

    @property
    def office(self) -> TicketOffice:
        """Of somebody who has the keys as they are now."""
        keys = KeysOfOthers(self.keys).keys
        return TicketOffice(lambda: keys, 600)

    @property
    def pipeline(self) -> str:
        return f"anabranch://{self.node.addresses['pipeline']}"

    def login(self, user: str) -> dict[str, Any]:
        return login(self.node.kafka, user)

    def create(self, topic: str, *, readers: Sequence[str] = ()) -> None:
        """A topic of one partition, which ``readers`` may read."""
        admin = AdminClient(self.login("root"))
        admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE)
        for name in readers:
            ruled(admin, rule(topic, f"User:{name}", AclOperation.READ), PATIENCE)

    def write(self, topic: str, values: Sequence[bytes]) -> None:
        producer = Producer({**self.login("root"), "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE) == 0
