"""The Helm chart: what it makes of its values is what Kubernetes takes, and what a node takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.compose.engine import COMPOSE
from tests.compose.helm import PROGRAM

pytestmark = [pytest.mark.go, pytest.mark.long]  # building Helm takes minutes

CHART = COMPOSE / "helm" / "anabranch"
VERSIONS = ("1.28", "1.33")
_CLUSTER = {
    "replicas": "3",
    "cluster.enabled": "true",
    "cluster.database.secretName": "database",
    "cluster.objects.url": "s3://bucket/prefix",
}
VALUES: dict[str, dict[str, str]] = {
    "one node": {},
    "without a volume": {"persistence.enabled": "false", "serviceAccount.create": "false"},
    "a cluster": _CLUSTER,
    "all there is": {
        **_CLUSTER,
        "cluster.objects.secretName": "bucket",
        "auth.required": "true",
        "auth.rules": "deny",
        "auth.superUsers": "User:root",
        "auth.secretName": "users",
        "auth.tickets": "true",
        "tls.secretName": "certificate",
        "tls.listeners": "{kafka,console,kafka-external}",
        "tls.clientCA": "optional",
        "external.enabled": "true",
        "external.host": "anabranch-$(POD_INDEX).example.com",
        "settings.kafka\\.num_partitions": "4",
        "settings.log\\.tail_cache_bytes": "64MiB",
        "persistence.storageClass": "fast",
        "priorityClassName": "high",
        "nodeSelector.disk": "ssd",
        "podLabels.team": "logs",
        "image.tag": "v1",
    },
}


KUBERNETES = "v1.31.0"


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM.command(), *map(str, arguments)], capture_output=True, text=True, check=False)


def given(values: Mapping[str, str]) -> Sequence[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def rendered(values: Mapping[str, str]) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    done = helm("template", "log", CHART, "--kube-version", KUBERNETES, "--namespace", "streams", *given(values))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def of_kind(documents: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@pytest.mark.parametrize("values", VALUES)
def test_the_linter_has_nothing_to_say(values: str) -> None:
    done = helm("lint", "--strict", CHART, "--kube-version", KUBERNETES, *given(VALUES[values]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_manifests_are_what_kubernetes_takes(values: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    documents = rendered(VALUES[values])
    assert len(of_kind(documents, "StatefulSet")) == 1
    for document in documents:
        validate.validate(document, version, strict=True)


def test_a_manifest_that_kubernetes_refuses_is_found() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    (made,) = of_kind(rendered({}), "StatefulSet")
    made["spec"]["replica"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(made, VERSIONS[0], strict=True)


@pytest.mark.parametrize("values", VALUES)
def test_a_node_takes_the_settings(values: str) -> None:
    (made,) = of_kind(rendered(VALUES[values]), "StatefulSet")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert made["spec"]["template"]["spec"]["enableServiceLinks"] is False, "ANABRANCH_PORT is no setting"
    pod = {"POD_NAME": "log-anabranch-2", "POD_INDEX": "2"}
    known = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    for name, value in known.items():
        for key, text in pod.items():
            value = value.replace(f"$({key})", text)
        known[name] = value
    if any(one["name"] == "ANABRANCH_CLUSTER__DATABASE" for one in container["env"]):
        known["ANABRANCH_CLUSTER__DATABASE"] = "postgresql://anabranch:secret@db/anabranch"
    command = [sys.executable, "-m", "bridges", "config", "--config", str(COMPOSE / "image" / "anabranch.toml")]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **known}, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    if values == "all there is":
        host = "log-anabranch-2.log-anabranch-nodes.streams.svc.cluster.local"
        assert known["ANABRANCH_ADVERTISE__SBP_RANGE_SERVER"] == f"{host}:10911"
        assert known["ANABRANCH_ADVERTISE__KAFKA_EXTERNAL"] == "anabranch-2.example.com:9094"
        assert known["ANABRANCH_KAFKA__NUM_PARTITIONS"] == "4"
        assert known["ANABRANCH_NODE__ID"] == "2"
        assert known["ANABRANCH_SBP__TICKETS"] == "true"
        assert known["ANABRANCH_SBP__OBJECT_LOG"] == "log-anabranch-2"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": "2"}, "more than one node needs cluster.enabled"),
        ({"cluster.enabled": "true"}, "cluster.database.secretName"),
        ({**_CLUSTER, "cluster.objects.url": ""}, "cluster.objects.url"),
        ({"external.enabled": "true"}, "external.host"),
        ({**_CLUSTER, "external.enabled": "true", "external.host": "log.example.com"}, "a name of its own"),
        ({"auth.required": "true"}, "auth.secretName"),
        ({**_CLUSTER, "auth.tickets": "true"}, "the same token-keys.json"),
        ({"replica": "2"}, "replica"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(values: dict[str, str], said: str) -> None:
    done = helm("template", "log", CHART, "--kube-version", KUBERNETES, *given(values))
    assert done.returncode != 0
    assert said in done.stderr
