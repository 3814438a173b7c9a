"""What workers are given, and when one that has ended is started again."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from anabranch_kit.net.address import Address
from bridges.commands.servers.workers import Child
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError
from bridges.node.storage.data_dir import DataDirectory
from bridges.node.workers.settings import by_name, check, settings_of
from bridges.node.workers.worker import left_behind, moved, store_of
from sbp_document.backend import DocumentBackend

FLAGS = {"node.workers": "4", "node.id": "10", "advertise.kafka": "host:19092", "listen.ydb": "off"}


def test_each_worker_has_addresses_and_an_id_of_its_own_and_a_share_of_what_is_bounded() -> None:
    settings = load(FLAGS, environ={}).settings
    fronts = settings.fronts
    check(settings, fronts)
    first, last = (settings_of(settings, fronts, number) for number in (0, 3))
    assert (first.node.id, last.node.id) == (10, 13)
    assert (first.listen["kafka"], last.listen["kafka"]) == ("127.0.0.1:9092", "127.0.0.1:9992")
    assert (first.advertise["kafka"], last.advertise["kafka"]) == ("host:19092", "host:19992")
    assert first.listen["ydb"] == last.listen["ydb"] == "off"
    # Their own address for one another is any free one.
    assert first.listen["cluster"] == last.listen["cluster"] == "127.0.0.1:0"
    for section, name in (
        ("limits", "connections_memory_bytes"),
        ("limits", "translated_bytes"),
        ("limits", "history_bytes"),
        ("log", "tail_cache_bytes"),
        ("log", "max_producers"),
        ("log", "cleaner_bytes_per_second"),
    ):
        assert getattr(getattr(last, section), name) == getattr(getattr(settings, section), name) // 4
    assert last.sbp.retention_bytes == -1
    assert (first.sbp.object_log, last.sbp.object_log) == ("0", "0-3")
    again = settings_of(settings, fronts, 3, {"kafka": "127.0.0.1:40000"})
    assert again.listen == {**last.listen, "kafka": "127.0.0.1:40000"}


def test_no_two_listeners_are_at_one_port() -> None:
    listen = {f"listen.{name}": f":{port}" for name, port in DocumentBackend.listeners.items()}
    settings = load({**listen, "node.workers": "64"}, environ={}).settings
    check(settings, settings.fronts)
    ports = [
        Address.parse(text).port
        for number in range(64)
        for text in settings_of(settings, settings.fronts, number).listen.values()
    ]
    given = [port for port in ports if port]
    # Below those that Linux gives to whoever asks for any.
    assert 64 * 10 < len(set(given)) == len(given)
    assert max(given) < 32768
    settings = load({"node.workers": "11", "node.worker_port_step": "100"}, environ={}).settings
    with pytest.raises(SettingsError, match="pipeline of worker 10 would both be at port 9090: choose another"):
        check(settings, settings.fronts)


def test_no_bound_stays_none_and_shares_are_never_too_small() -> None:
    settings = load(
        {**FLAGS, "log.cleaner_bytes_per_second": "0", "sbp.retention_bytes": "4000", "log.max_producers": "1000"},
        environ={},
    ).settings
    last = settings_of(settings, settings.fronts, 3)
    assert last.log.cleaner_bytes_per_second == 0
    assert last.sbp.retention_bytes == 1000
    assert last.log.max_producers == 1000


def test_ports_that_there_are_not_are_refused() -> None:
    assert moved(Address("h", 9092), 2, 100) == Address("h", 9292)
    assert moved(Address("h", 9092), 2, 0) == moved(Address("h", 0), 2, 100) == Address("h", 0)
    assert moved(Address("h", 9092), 0, 0) == Address("h", 9092)
    with pytest.raises(SettingsError, match="worker_port_step"):
        moved(Address("h", 65500), 1, 100)


def test_each_store_of_a_worker_that_is_no_more_is_served_by_one_of_those_that_are(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    try:
        for number in range(7):
            store_of(directory, number).mkdir()
        (directory.path / "sbp-old").mkdir()
        for count in range(1, 9):
            served = [number for worker in range(count) for number in left_behind(directory, worker, count)]
            assert sorted(served) == list(range(count, 7))
        assert left_behind(directory, 1, 3) == [4]
    finally:
        directory.release()


def test_what_a_group_of_workers_cannot_be_is_refused() -> None:
    settings = load({**FLAGS, "sbp.mode": "external", "sbp.pd": "h:1"}, environ={}).settings
    with pytest.raises(SettingsError, match="each worker keeps"):
        check(settings, settings.fronts)
    settings = load({**FLAGS, "auth.required": "true"}, environ={}).settings
    with pytest.raises(SettingsError, match="sbp-range-server"):
        check(settings, settings.fronts)
    check(replace(settings, listen={**settings.listen, "sbp-range-server": "127.0.0.1:10911"}), settings.fronts)
    check(replace(settings, sbp=replace(settings.sbp, tickets=True)), settings.fronts)


def test_listeners_of_all_workers_have_names() -> None:
    told = dict(by_name([{"kafka": "a:1", "console": "a:2"}, {"kafka": "a:3"}]))
    assert told == {"kafka": "a:1", "console": "a:2", "kafka/1": "a:3"}


def test_a_worker_is_started_again_at_once_and_then_ever_later_until_it_lasts() -> None:
    child = Child(1)
    child.addresses = {"kafka": "h:1"}
    pauses = []
    for _ in range(10):
        child.ended(100.0)
        pauses.append(child.at - 100.0)
        assert bool(child.addresses) == (len(pauses) <= 3)
    assert pauses[:4] == pytest.approx([0, 0.1, 0.2, 0.4])
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10
    child.serves, child.started = True, 100.0
    child.ended(120.0)  # it served, but not for long
    assert child.at == 130.0
    child.serves, child.started = True, 200.0
    child.ended(300.0)
    assert child.at == 300.0
