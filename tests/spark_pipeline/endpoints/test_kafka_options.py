"""Options of Kafka clusters under the names of librdkafka and of Java's clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.core.errors import OptionError
from spark_pipeline.endpoints.kafka.options import kafka_config

MODULES = "org.apache.kafka.common.security"


def taken(**options: str) -> dict[str, object]:
    plain = kafka_config("kafka://h", {})
    return {name: one for name, one in kafka_config("kafka://h", options).items() if plain.get(name) != one}


def test_names_of_librdkafka_and_java_are_taken(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----")
    assert taken(**{"kafka.sasl.mechanisms": "scram-sha-256"}) == {"sasl_mechanism": "SCRAM-SHA-256"}
    user = {"sasl_plain_username": "ann", "sasl_plain_password": 'a "b;c'}
    for module in (f"{MODULES}.plain.PlainLoginModule", f"{MODULES}.scram.ScramLoginModule"):
        config = f'{module} required username="ann" password="a \\"b;c";'
        assert taken(**{"kafka.sasl.jaas.config": config}) == user
    single = f"{MODULES}.plain.PlainLoginModule required username=ann password='x';"
    assert taken(**{"kafka.sasl.jaas.config": single}) == {"sasl_plain_username": "ann", "sasl_plain_password": "x"}
    stores = {"kafka.ssl.truststore.location": str(pem), "kafka.ssl.truststore.type": "PEM"}
    assert taken(**stores) == {"ssl_cafile": str(pem)}
    assert taken(**{"kafka.ssl.keystore.location": str(pem)}) == {"ssl_certfile": str(pem), "ssl_keyfile": str(pem)}
    assert taken(**{"kafka.ssl.endpoint.identification.algorithm": ""}) == {"ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("sasl.mechanism", "OAUTHBEARER", "SCRAM-SHA-512"),
        ("sasl.mechanisms", "GSSAPI", "SCRAM-SHA-512"),
        ("sasl.oauthbearer.token.endpoint.url", "https://h", "kafka.sasl.username"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required;", "kafka.sasl.username"),
        ("sasl.jaas.config", f"{MODULES}.plain.PlainLoginModule required;", "kafka.sasl.password"),
        ("ssl.truststore.password", "x", "kafka.ssl.ca.location"),
        ("ssl.truststore.type", "JKS", "kafka.ssl.ca.location"),
        ("ssl.truststore.location", "/no/such.jks", "No such file"),
        ("ssl.keystore.password", "x", "kafka.ssl.key.password"),
        ("group.id", "g", "kafka.client.id"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_what_to_give(name: str, value: str, instead: str) -> None:
    with pytest.raises(OptionError, match=name.replace(".", r"\.")) as refused:
        kafka_config("kafka://h", {f"kafka.{name}": value})
    assert instead in str(refused.value)


def test_a_java_store_is_refused_with_how_to_make_it_pem(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(OptionError, match="keytool"):
        kafka_config("kafka://h", {"kafka.ssl.truststore.location": str(store)})
