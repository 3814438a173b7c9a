"""Options of a Kafka cluster, under the names of librdkafka's and Java's clients, translated for kafka-python.

An option that cannot be translated is refused, and the error names the option to give instead: nothing is ignored
silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_pipeline.core.errors import OptionError

_FRAME_MOST = 256 * 1024 * 1024
_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "bootstrap.timeout.ms": "bootstrap_timeout_ms",
    "request.timeout.ms": "request_timeout_ms",
}
"""Options -> kafka-python's names."""
_NUMBERS = ("bootstrap_timeout_ms", "request_timeout_ms")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_JAVA_STORES = {"ssl.truststore.location": ("ssl_cafile",), "ssl.keystore.location": ("ssl_certfile", "ssl_keyfile")}
_USER_BY = (
    "give kafka.sasl.mechanism = SCRAM-SHA-512 (or PLAIN) with kafka.sasl.username and kafka.sasl.password, or a "
    "certificate with kafka.ssl.certificate.location and kafka.ssl.key.location"
)
_REFUSED = {
    "ssl.truststore.password": "certificates are read as PEM, without a password: kafka.ssl.ca.location names them",
    "ssl.truststore.certificates": "kafka.ssl.ca.location names a file that has them",
    "ssl.ca.pem": "kafka.ssl.ca.location names a file that has them",
    "ssl.keystore.password": "keys are read as PEM: kafka.ssl.key.password belongs to kafka.ssl.key.location",
    "ssl.keystore.key": "kafka.ssl.key.location names a file that has it",
    "ssl.key.pem": "kafka.ssl.key.location names a file that has it",
    "ssl.keystore.certificate.chain": "kafka.ssl.certificate.location names a file that has it",
    "ssl.certificate.pem": "kafka.ssl.certificate.location names a file that has it",
    "enable.ssl.certificate.verification": "certificates are always checked: kafka.ssl.ca.location says against which",
    "sasl.kerberos.service.name": _USER_BY,
    "sasl.login.callback.handler.class": _USER_BY,
}
_JAAS = re.compile(r"[\w.]+\.(?:PlainLoginModule|ScramLoginModule)\s+required\b(.*?);?\s*", re.DOTALL)
_JAAS_PAIR = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")


def kafka_config(url: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of kafka-python's clients. Raises OptionError for an invalid address or option."""
    split = urlsplit(url)
    if split.scheme != "kafka" or not split.netloc:
        raise OptionError(f"{url!r} is no address of a Kafka cluster: kafka://host:9092[,host:9092...]")
    config: dict[str, Any] = {
        "bootstrap_servers": [
            one if ":" in one.rpartition("]")[2] else f"{one}:9092" for one in split.netloc.split(",") if one
        ],
        "receive_message_max_bytes": _FRAME_MOST,
        "client_id": "anabranch-pipeline",
        "bootstrap_timeout_ms": 30_000,
    }
    for name, value in options.items():
        if name.startswith("kafka."):
            config.update(_translate(name, value))
    for name in _NUMBERS:
        if name in config and not isinstance(config[name], int):
            if not config[name].isdigit():
                raise OptionError(f"{name} = {config[name]!r} is no number of milliseconds")
            config[name] = int(config[name])
    return config


def _translate(option: str, value: str) -> dict[str, Any]:
    name = option.removeprefix("kafka.")
    if name in _REFUSED or name.startswith("sasl.oauthbearer."):
        raise OptionError(f"option {option!r} is not taken: {_REFUSED.get(name, _USER_BY)}")
    if name in _JAVA_STORES:
        return dict.fromkeys(_JAVA_STORES[name], _pem(option, value))
    if name in ("ssl.truststore.type", "ssl.keystore.type"):
        if value.upper() != "PEM":
            raise OptionError(f"{option} = {value}: {_AS_PEM}")
        return {}
    if name == "ssl.endpoint.identification.algorithm":
        if value.lower() not in ("", "none", "https"):
            raise OptionError(f"{option} = {value!r}: https checks the broker's name, none does not")
        return {"ssl_check_hostname": value.lower() == "https"}
    if name == "sasl.jaas.config":
        return _jaas(option, value)
    known = _NAMES.get(name)
    if known is None:
        names = ", ".join(f"kafka.{one}" for one in sorted(_NAMES))
        raise OptionError(f"option {option!r} is none of a Kafka endpoint: there are {names}")
    if known == "sasl_mechanism":
        value = value.upper()
        if value not in _MECHANISMS:
            raise OptionError(f"{option} = {value} is not taken: {_USER_BY}")
    return {known: value}


_AS_PEM = (
    "stores of Java's are read as PEM alone: kafka.ssl.ca.location, kafka.ssl.certificate.location and "
    "kafka.ssl.key.location name such files, which `keytool -exportcert -rfc` and `openssl pkcs12` make of others"
)


def _pem(option: str, path: str) -> str:
    try:
        if b"-----BEGIN" in Path(path).read_bytes():
            return path
    except OSError as error:
        raise OptionError(f"{option}: {error}") from error
    raise OptionError(f"{option} = {path} is no PEM: {_AS_PEM}")


def _jaas(option: str, value: str) -> dict[str, str]:
    """Parse user and password of Java's one-line form."""
    found = _JAAS.fullmatch(value.strip())
    if found is None:
        raise OptionError(f"option {option!r} has none of the login modules for PLAIN and SCRAM: {_USER_BY}")
    told = {
        pair[1]: pair[4]
        if pair[4] is not None
        else re.sub(r"\\(.)", r"\1", pair[2] if pair[2] is not None else pair[3])
        for pair in _JAAS_PAIR.finditer(found[1])
    }
    if not {"username", "password"} <= told.keys():
        raise OptionError(f"option {option!r} has no username and password: {_USER_BY}")
    return {"sasl_plain_username": told["username"], "sasl_plain_password": told["password"]}
