"""Apicurio Registry with the serializers of Confluent's client and of its own: what they write is decoded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.bridges.console.schemas.test_schemas import JSON_ORDER, ORDER, proto_message
from tests.drivers import java
from tests.ecosystem.registry import POM, Registry
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.long, pytest.mark.slow]


class InMemory(Registry):
    """The registry without a server behind it."""

    started = "Using the following RegistryStorage implementation"

    def command(self) -> Sequence[str]:
        return [one for one in super().command() if "kafkasql" not in one]


def test_what_confluents_and_apicurios_serializers_write_is_decoded(tmp_path: Path) -> None:
    with InMemory(tmp_path / "registry", "none") as registry:
        registry.call("GET", "/subjects")  # it serves a little later
        at = f"http://127.0.0.1:{registry.port}/apis"
        listen = dict.fromkeys(("kafka", "console"), "127.0.0.1:0")
        settings = {"schemas.registry": f"{at}/ccompat/v7"}
        with NodeProcess(tmp_path / "data", settings=settings, listen=listen) as node:
            client = SchemaRegistryClient({"url": f"{at}/ccompat/v7"})
            conf: dict[str, Any] = {"subject.name.strategy": topic_subject_name_strategy}
            message = proto_message(id=5, country="DE")
            written = {
                "avro": (AvroSerializer(client, json.dumps(ORDER), conf=conf), {"id": 5, "country": "DE"}),
                "json": (JSONSerializer(json.dumps(JSON_ORDER), client, conf=conf), {"id": 5}),
                "proto": (ProtobufSerializer(type(message), client, {**conf, "use.deprecated.format": False}), message),
            }
            producer = Producer({"bootstrap.servers": node.kafka})
            for topic, (serializer, value) in written.items():
                producer.produce(topic, serializer(value, SerializationContext(topic, MessageField.VALUE)))
            assert producer.flush(60) == 0
            program = java("serdes", POM.parent.parent / "serdes" / "pom.xml", "anabranch.ecosystem.Serdes")
            subprocess.run([*program.command(), node.kafka, f"{at}/registry/v2"], check=True, timeout=120)

            def decoded(topic: str) -> Any:
                with urlopen(f"{node.console}/api/topics/{topic}/records?decode=true", timeout=60) as answer:
                    one = json.loads(answer.readline())["value_decoded"]
                return one["type"], json.loads(one["text"]) if "text" in one else one["error"]

            assert decoded("avro") == ("AVRO", {"id": 5, "country": "DE"})
            assert decoded("json") == ("JSON", {"id": 5})
            assert decoded("proto") == ("PROTOBUF", {"id": "5", "country": "DE"})
            assert decoded("java-avro") == ("AVRO", {"id": 1234567890123456789})
            assert decoded("java-json") == ("JSON", {"id": 5})
