"""``anabranch doctor`` finds each thing that can be wrong with an installation, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch_kit.disk.files import Files
from anabranch_kit.net.address import Address
from anabranch_kit.net.tls import TlsFiles
from bridges.checkup import certificates, clock, database, doors, machine, objects, storage
from bridges.commands.cli import main
from bridges.node.finding import Finding, Severity
from bridges.node.settings.config import Settings, load
from tests.certificates import Authority, openssl
from tests.kafka_front.node_lab import serving
from tests.ports import free_port, free_step
from tests.postgres import Postgres
from tests.s3_server import ACCESS


def set_to(tmp_path: Path, **sets: str) -> Settings:
    flags = {"data_dir": str(tmp_path / "data"), "default_host": "127.0.0.1"}
    return load(flags | {key.replace("__", "."): value for key, value in sets.items()}, environ={}).settings


def of(findings: Iterable[Finding], about: str) -> list[tuple[Severity, str]]:
    return [(one.severity, one.sentence) for one in findings if one.about == about]


def worst(findings: Iterable[Finding]) -> Severity:
    order = list(Severity)
    return max((one.severity for one in findings), key=order.index)


def doctor(tmp_path: Path, *sets: str) -> Result:
    words = [word for one in sets for word in ("--set", one)]
    return CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "data"), "--json", *words], env={})


def free_ports(tmp_path: Path) -> list[str]:
    names = ("kafka", "ydb", "pravega", "pravega-segmentstore", "pipeline", "console", "sbp-pd", "sbp-range-server")
    return [f"listen.{name}=127.0.0.1:0" for name in names]


def test_a_good_installation_has_nothing_wrong(tmp_path: Path) -> None:
    result = doctor(tmp_path, *free_ports(tmp_path))
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    assert {"data directory", "file system", "disk", "descriptors", "memory", "listeners", "access"} <= {
        one["about"] for one in found
    }
    assert not [one for one in found if one["severity"] == "wrong"]
    assert not (tmp_path / "data").exists(), "looking makes nothing"
    assert list(tmp_path.iterdir()) == []


async def test_a_node_that_runs_is_told_and_its_addresses_are_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", {"listen.console": "127.0.0.1:0"}) as node:
        data = node.settings.data_dir
        closed = {one.partition("=")[0]: "off" for one in free_ports(tmp_path)}
        listen = closed | {"data_dir": str(data), "listen.console": str(node.addresses["console"])}
        settings = load(listen, environ={}).settings
        assert storage.holder_of(data) == str(os.getpid())
        assert not of(doors.check(settings, running=True, now_s=time.time()), "listen.console")
        assert of(doors.check(settings, running=False, now_s=time.time()), "listen.console")
    assert storage.holder_of(data) is None


def test_an_address_that_is_taken_is_named_with_the_setting(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        result = doctor(tmp_path, *free_ports(tmp_path)[1:], f"listen.kafka={taken}")
    assert result.exit_code == 1
    wrong = [one for one in json.loads(result.output) if one["severity"] == "wrong"]
    assert [one["about"] for one in wrong] == ["listen.kafka"]
    assert taken in wrong[0]["sentence"]
    assert "listen.kafka" in wrong[0]["remedy"]


async def test_a_node_with_another_directory_is_told_instead_of_its_addresses(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", {"listen.console": "127.0.0.1:0"}) as node:
        console = node.addresses["console"]
        addresses = {"console": console, "kafka": console}
        found = await asyncio.to_thread(lambda: list(doors.check_free(addresses, tmp_path)))
    assert [(one.severity, one.about) for one in found] == [(Severity.WARNING, "data directory")]
    assert str(console) in found[0].sentence


def told(tmp_path: Path, **sets: str) -> list[tuple[Severity, str]]:
    found = doors.check(set_to(tmp_path, **sets), running=True, now_s=time.time())
    return [(one.severity, one.about) for one in found if one.severity is not Severity.NOTE and one.about != "access"]


@pytest.mark.parametrize(
    ("listen", "advertise", "severity"),
    [
        ("0.0.0.0:9092", "0.0.0.0:9092", Severity.WRONG),
        ("0.0.0.0:9092", "[::]:9092", Severity.WRONG),
        ("0.0.0.0:9092", "127.0.0.1:9092", Severity.WARNING),
        ("0.0.0.0:9092", "localhost:9092", Severity.WARNING),
        ("0.0.0.0:9092", "no-such-host.invalid:9092", Severity.WARNING),
        ("127.0.0.1:9092", "localhost:9092", None),
        ("0.0.0.0:9092", "192.0.2.7:9092", None),
    ],
)
def test_what_clients_are_told_leads_them_to_the_node(
    listen: str, advertise: str, severity: Severity | None, tmp_path: Path
) -> None:
    found = told(tmp_path, listen__kafka=listen, advertise__kafka=advertise)
    assert found == ([] if severity is None else [(severity, "advertise.kafka")])


@pytest.mark.parametrize("console", ["127.0.0.1:9092", "0.0.0.0:9092"])
def test_two_listeners_at_one_port_are_named(console: str, tmp_path: Path) -> None:
    found = list(
        doors.check(
            set_to(tmp_path, listen__kafka="127.0.0.1:9092", listen__console=console), running=True, now_s=time.time()
        )
    )
    ((severity, sentence),) = of(found, "listeners")
    assert severity is Severity.WRONG
    assert sentence.endswith("would both be at port 9092")
    assert {"kafka", "console"} <= set(sentence.split())
    assert told(tmp_path, listen__kafka="127.0.0.1:9092", listen__console="127.0.0.2:9092") == []


def test_rules_that_nobody_can_make_are_told(tmp_path: Path) -> None:
    def access(**sets: str) -> list[str]:
        settings = set_to(tmp_path, auth__required="true", auth__rules="deny", **sets)
        return [sentence for _, sentence in of(doors.check(settings, running=True, now_s=time.time()), "access")]

    assert "no super user" in access()[0]
    assert access(auth__super_users="User:root") == []


def test_listeners_are_given_as_to_serve(tmp_path: Path) -> None:
    words = [word for one in free_ports(tmp_path) for word in ("--listen", one.removeprefix("listen."))]
    result = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "data"), *words], env={})
    assert result.exit_code == 0, result.output
    assert "8 addresses are free" in result.output


# --- the object storage -----------------------------------------------------------------------------------------------


class Trials(dict[str, bytes]):
    """A bucket, which keeps writers apart or does not."""

    def __init__(self, *, apart: bool = True) -> None:
        self.apart = apart

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if self.apart and key in self:
            return False
        self[key] = content
        return True

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            del self[key]


def test_an_object_storage_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    (found,) = objects.check(set_to(tmp_path, sbp__durability="object", sbp__objects="s3://bucket/prefix"))
    assert (found.severity, found.about) == (Severity.WRONG, "object storage")


@pytest.mark.parametrize(("apart", "severity"), [(True, Severity.FINE), (False, Severity.WRONG)])
def test_an_object_storage_keeps_two_writers_apart(
    apart: bool, severity: Severity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(apart=apart)
    monkeypatch.setattr(objects, "Bucket", lambda url: trials)
    (found,) = objects.check(set_to(tmp_path, sbp__durability="object", sbp__objects="s3://bucket/prefix"))
    assert found.severity is severity
    assert not trials, "nothing is left there"


def test_a_cluster_whose_data_is_on_one_disk_each(tmp_path: Path) -> None:
    (found,) = objects.check(set_to(tmp_path, cluster__database="postgresql://db/anabranch", node__id="1"))
    assert found.severity is Severity.WARNING
    assert "sbp.durability=object" in found.remedy


@pytest.mark.parametrize("key", ["object_cache_bytes", "local_bytes"])
def test_what_is_to_be_on_the_disk_fits_there(key: str, tmp_path: Path) -> None:
    sets = {"sbp__objects": f"file://{tmp_path}", f"sbp__{key}": str(1 << 60)}
    if key == "object_cache_bytes":
        sets["sbp__durability"] = "object"
    found = storage.check_space(set_to(tmp_path, **sets), tmp_path)
    assert any(f"sbp.{key} is " in one.sentence for one in found if one.severity is Severity.WARNING)


def test_wrong_settings_are_told_as_serve_tells_them(tmp_path: Path) -> None:
    result = doctor(tmp_path, "sbp.durability=never")
    assert result.exit_code == 2
    assert "sbp.durability" in result.output


def test_a_directory_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    found = list(storage.check(set_to(tmp_path)))
    assert [one.severity for one in found] == [Severity.WRONG]
    assert str(tmp_path) in found[0].sentence


def test_file_systems_in_memory_and_over_the_network(tmp_path: Path) -> None:
    assert worst(storage.check_kind(tmp_path, "tmpfs")) is Severity.WARNING
    assert worst(storage.check_kind(tmp_path, "nfs4")) is Severity.WARNING
    assert worst(storage.check_kind(tmp_path, "ext4")) is Severity.FINE


def test_too_little_space_for_appends(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    more = status.f_bavail * status.f_frsize + 10**12
    found = list(storage.check_space(set_to(tmp_path, sbp__low_water_bytes=str(more)), tmp_path))
    assert worst(found) is Severity.WRONG
    assert "sbp.low_water_bytes" in found[0].sentence


class Slow(Files):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.now = 0.0

    def write(self, fd: int, parts: Any, offset: int, durable: bool) -> int:
        assert durable
        self.now += self.seconds
        return super().write(fd, parts, offset, durable)


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.001, Severity.FINE), (0.05, Severity.WARNING), (0.000_002, Severity.WARNING)]
)
def test_flushes_that_are_slow_or_too_fast_to_be_true(tmp_path: Path, seconds: float, severity: Severity) -> None:
    files = Slow(seconds)
    times = storage.flush_times(files, tmp_path, lambda: files.now)
    assert worst(storage.check_flushes(times, volatile=False)) is severity
    assert worst(storage.check_flushes(times, volatile=True)) is Severity.FINE


def test_what_is_not_promised_is_said(tmp_path: Path) -> None:
    found = list(storage.check(set_to(tmp_path, sbp__durability="os")))
    assert any("power loss" in sentence for severity, sentence in of(found, "durability"))


def test_a_limit_of_few_descriptors_is_a_warning(tmp_path: Path) -> None:
    settings = set_to(tmp_path)
    assert worst(machine.check_descriptors(settings, 1_000_000)) is Severity.FINE
    assert worst(machine.check_descriptors(settings, 1024)) is Severity.WARNING


def test_memory_of_the_machine_and_of_its_control_group(tmp_path: Path) -> None:
    settings = set_to(tmp_path)
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    groups.mkdir()
    assert machine.available_bytes(proc, groups) is None
    (proc / "meminfo").write_text("MemTotal:        4096000 kB\nMemFree: 1 kB\n")
    (groups / "memory.max").write_text("max\n")
    assert machine.available_bytes(proc, groups) == 4096000 * 1024
    (groups / "memory.max").write_text("100000000\n")
    assert machine.available_bytes(proc, groups) == 100_000_000
    assert worst(machine.check_memory(settings, 100_000_000)) is Severity.WARNING
    assert worst(machine.check_memory(settings, 4 << 30)) is Severity.FINE
    assert worst(machine.check_memory(settings, None)) is Severity.NOTE


def test_java_matters_only_where_spark_is(tmp_path: Path) -> None:
    assert list(machine.check_java(None, spark=False)) == []
    assert worst(machine.check_java(None, spark=True)) is Severity.NOTE
    assert worst(machine.check_java("/usr/bin/java", spark=True)) is Severity.FINE


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    now = time.time()
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "segment"
    file.write_text("")
    assert worst(clock.check(tmp_path, kept=True, now_s=now)) is Severity.FINE
    os.utime(file, (now + 3600, now + 3600))
    assert worst(clock.check(tmp_path, kept=True, now_s=now)) is Severity.WRONG
    assert worst(clock.check(tmp_path / "nowhere", kept=False, now_s=now)) is Severity.WARNING
    assert worst(clock.check(tmp_path / "nowhere", kept=None, now_s=now)) is Severity.NOTE
    assert clock.is_kept() in (True, False, None)


# --- certificates -----------------------------------------------------------------------------------------------------


def test_certificates_as_clients_see_them(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "one").issue("server")
    files = TlsFiles(cert, key)
    now = time.time()
    key.chmod(0o600)
    found = list(certificates.check("kafka", files, Address("localhost", 1), now - 30 * 86_400))
    assert worst(found) is Severity.FINE, found
    assert worst(certificates.check("kafka", files, Address("127.0.0.1", 1), now)) is Severity.WARNING  # two days left
    other = list(certificates.check("kafka", files, Address("broker.example", 1), now - 30 * 86_400))
    assert [one.sentence for one in other if one.severity is Severity.WARNING] == [
        f"clients are told broker.example, which {cert} does not name"
    ]
    key.chmod(0o644)
    assert "others may read" in of(certificates.check("kafka", files, None, now), "tls.kafka")[0][1]


def test_certificates_that_clients_refuse(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "one")
    cert, key = authority.issue("server")
    ended = tmp_path / "ended.pem"
    dates = ("-not_before", "20200101000000Z", "-not_after", "20210101000000Z")
    try:
        openssl("x509", "-in", cert, "-signkey", key, *dates, "-out", ended)
    except Exception:  # noqa: BLE001 - an OpenSSL that cannot be told dates: one of days that are over
        openssl("x509", "-in", cert, "-signkey", key, "-days", "-1", "-out", ended)
    found = list(certificates.check("kafka", TlsFiles(ended, key), None, time.time()))
    assert worst(found) is Severity.WRONG
    assert "has ended" in found[-1].sentence
    _, another = authority.issue("another")
    assert worst(certificates.check("kafka", TlsFiles(cert, another), None, time.time())) is Severity.WRONG
    assert worst(certificates.check("kafka", TlsFiles(tmp_path / "none", key), None, time.time())) is Severity.WRONG


# --- who gets in ------------------------------------------------------------------------------------------------------


def test_who_gets_in_is_said(tmp_path: Path) -> None:
    def access(**sets: str) -> list[tuple[Severity, str]]:
        settings = set_to(tmp_path, **sets)
        return of(doors.check(settings, running=True, now_s=time.time()), "access")

    assert [severity for severity, _ in access()] == [Severity.NOTE]
    ((severity, sentence),) = access(listen__kafka="0.0.0.0:9092")
    assert severity is Severity.WARNING
    assert "kafka" in sentence
    assert access(auth__required="true") == []
    ((severity, sentence),) = access(auth__required="true", listen__kafka="0.0.0.0:9092")
    assert "in the clear at kafka" in sentence


def test_users_that_are_missing_or_damaged(tmp_path: Path) -> None:
    settings = set_to(tmp_path, auth__required="true")
    assert [one for one, _ in of(doors.check(settings, running=True, now_s=0), "users")] == [Severity.WARNING]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "users.json").write_text("{")
    assert [one for one, _ in of(doors.check(settings, running=True, now_s=0), "users")] == [Severity.WRONG]


def test_addresses_of_all_workers_are_looked_at(tmp_path: Path) -> None:
    first = free_port()  # which is given to nobody else
    step = free_step([first])
    port = first + step
    with closing(socket.create_server(("127.0.0.1", port))):
        sets = [
            *free_ports(tmp_path)[1:],
            f"listen.kafka=127.0.0.1:{first}",
            "node.workers=2",
            f"node.worker_port_step={step}",
        ]
        result = doctor(tmp_path, *sets)
    assert result.exit_code == 1, result.output
    (wrong,) = [one for one in json.loads(result.output) if one["severity"] == "wrong"]
    assert wrong["about"] == "listen.kafka/1"
    assert f"127.0.0.1:{port}" in wrong["sentence"]
    assert "listen.kafka=HOST:PORT" in wrong["remedy"]
    closed = json.loads(doctor(tmp_path, "node.workers=2", "listen.sbp-range-server=off").output)
    assert any("read each other's partitions" in one["sentence"] for one in closed)


def test_the_database_of_a_cluster_and_its_clock(postgres: Postgres) -> None:
    assert list(database.check("")) == []
    (found,) = database.check(postgres.url("postgres"))
    assert (found.severity, found.about) == (Severity.FINE, "database")
    moment = iter(range(1_000_000, 2_000_000))
    slow, apart = database.check(postgres.url("postgres"), lambda: float(next(moment)))
    assert (slow.severity, apart.severity, apart.about) == (Severity.WARNING, Severity.WARNING, "clock")
    (gone,) = database.check("postgresql://nobody@127.0.0.1:1/none")
    assert gone.severity is Severity.WRONG
    assert gone.remedy
