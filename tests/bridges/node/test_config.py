from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.net.address import Address
from anabranch_kit.net.tls import TlsFiles
from bridges.node.settings.config import load, schema
from bridges.node.settings.quantities import format_duration, format_size, parse_duration, parse_size
from bridges.node.settings.sections import SettingsError
from bridges.node.settings.tls import tls_files


def given_(flags=None, environ=None, file: str | None = None, tmp_path: Path | None = None):
    path = None
    if file is not None:
        assert tmp_path is not None
        path = tmp_path / "settings.toml"
        path.write_text(file)
    return load(flags, environ=environ or {}, file=path, directory=tmp_path or Path("/nonexistent"))


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = "[kafka]\nnum_partitions = 2\nmax_connections = 20\nfetch_sessions = 200\n"
    environ = {"ANABRANCH_KAFKA__NUM_PARTITIONS": "3", "ANABRANCH_KAFKA__MAX_CONNECTIONS": "30"}
    loaded = given_({"kafka.num_partitions": "4"}, environ, file, tmp_path)
    kafka = loaded.settings.kafka
    assert (kafka.num_partitions, kafka.max_connections, kafka.fetch_sessions) == (4, 30, 200)
    assert kafka.group.max_size == 10_000
    origins = {row.key: row.origin for row in loaded.table()}
    assert origins["kafka.num_partitions"] == "command line"
    assert origins["kafka.max_connections"] == "environment ANABRANCH_KAFKA__MAX_CONNECTIONS"
    assert origins["kafka.fetch_sessions"] == str(tmp_path / "settings.toml")
    assert origins["kafka.group.max_size"] == "default"


def test_the_usual_file_is_read_where_the_node_starts(tmp_path: Path) -> None:
    defaults = load(environ={}, directory=tmp_path / "nowhere").settings
    assert given_(tmp_path=tmp_path).settings == defaults
    (tmp_path / "anabranch.toml").write_text("[node]\nid = 7\n")
    assert given_(tmp_path=tmp_path).settings.node.id == 7


def test_maps_take_names_with_dots_and_underscores(tmp_path: Path) -> None:
    file = '[listen]\nkafka = "0.0.0.0:1"\n[topic_defaults]\n"retention.bytes" = 5\nretention.ms = "6"\n'
    file += "preallocate = true\n"
    environ = {"ANABRANCH_LISTEN__SBP_PD": ":2", "ANABRANCH_ADVERTISE__KAFKA": "here:9"}
    settings = given_({"listen.sbp.range_server": "off"}, environ, file, tmp_path).settings
    assert settings.listen == {"kafka": "0.0.0.0:1", "sbp-pd": ":2", "sbp-range-server": "off"}
    assert settings.advertise == {"kafka": "here:9"}
    assert settings.topic_defaults == {"retention.bytes": "5", "retention.ms": "6", "preallocate": "true"}


def test_sizes_and_durations_are_written_like_people_write_them() -> None:
    flags = {"log.tail_cache_bytes": "1.5GiB", "kafka.group.offsets_retention_ms": "7d", "sbp.retention_bytes": "-1"}
    loaded = given_(flags)
    assert loaded.settings.log.tail_cache_bytes == 3 * 2**29
    assert loaded.settings.kafka.group.offsets_retention_ms == 7 * 86_400_000
    values = {row.key: row.value for row in loaded.table()}
    assert values["log.tail_cache_bytes"] == "1536MiB"
    assert values["kafka.group.offsets_retention_ms"] == "7d"


@pytest.mark.parametrize(
    ("flags", "environ", "file", "expected"),
    [
        ({"kafka.num_partition": "1"}, {}, None, "command line: unknown setting 'kafka.num_partition' (did you mean"),
        ({}, {}, "[sbp]\nnope = 1\n", "settings.toml: unknown setting 'sbp.nope'"),
        ({"listen": "x"}, {}, None, "needs a name after it"),
        ({"kafka": "x"}, {}, None, "unknown setting 'kafka'"),
        ({"kafka.num_partitions.x": "1"}, {}, None, "unknown setting"),
        ({"kafka.num_partitions": "many"}, {}, None, "command line: kafka.num_partitions = 'many':"),
        ({"kafka.num_partitions": "0"}, {}, None, "kafka.num_partitions = '0':"),
        ({"sbp.durability": "maybe"}, {}, None, "sbp.durability = 'maybe':"),
        ({"sbp.segment_bytes": "lots"}, {}, None, "a size such as"),
        ({"sbp.segment_bytes": "-1"}, {}, None, "sbp.segment_bytes = '-1':"),
        (
            {},
            {"ANABRANCH_NODE__DRAIN_TIMEOUT_MS": "soon"},
            None,
            "ANABRANCH_NODE__DRAIN_TIMEOUT_MS: node.drain_timeout_ms",
        ),
        ({"topic_defaults.retention.ms": "x"}, {}, None, "command line: topic_defaults: retention.ms = 'x'"),
        ({"topic_defaults.nope": "x"}, {}, None, "'nope' is not a topic configuration"),
        ({}, {}, "this is = = not toml", "settings.toml:"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(flags, environ, file, expected: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        given_(flags, environ, file, tmp_path)
    assert expected in str(caught.value)


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        given_({"kafka.num_partitions": "x", "node.id": "y"})
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("data_dir = 5", "settings.toml: data_dir = 5: must be text"),
        ("default_host = ''", "default_host = '': must not be empty"),
        ("[listen]\nkafka = 5", "settings.toml: listen.kafka = 5: must be text"),
        ("[node]\nrack = 5", "node.rack = 5: must be text"),
        ("[node]\nid = true", "node.id = True: must be a whole number"),
        ("[node]\nid = 0.5", "node.id = 0.5: must be a whole number"),
        ("[node]\nid = '0x1'", "node.id = '0x1': must be a whole number"),
        ("[node]\nid = 2147483648", "node.id = 2147483648: must be at most 2147483647"),
        ("[sbp]\nsegment_bytes = 1.5", "sbp.segment_bytes = 1.5: must be a size such as"),
        ("[sbp]\nsegment_bytes = [1]", "sbp.segment_bytes = [1]: must be a size such as"),
        ("[sbp]\nsegment_bytes = true", "sbp.segment_bytes = True: must be a size such as"),
        ("[sbp]\nsegment_bytes = '1KiB'", "sbp.segment_bytes = '1KiB': must be at least 1MiB"),
        ("[log]\ntail_cache_bytes = -1", "log.tail_cache_bytes = -1: must be at least 0"),
        ("[sbp]\ntimeout_ms = '1ms'", "sbp.timeout_ms = '1ms': must be at least 100ms"),
        ("[sbp]\ndialect = 0.2", "sbp.dialect = 0.2: must be text"),
        ("[sbp]\npd = 'here'", "sbp.pd = 'here': 'here' is not HOST:PORT"),
        ("[auth]\nrequired = 'maybe'", "auth.required = 'maybe': must be true or false"),
        ("[auth]\nsuper_users = 'admin'", "auth.super_users = 'admin': 'admin' is nobody: users are named as User:"),
        ("[auth]\nsuper_users = 'User:a; user:b'", "'user:b' is nobody"),
        ("[auth]\nsuper_users = 'User:a,User:b'", "'User:a,User:b' is nobody"),
        ("[auth]\nsuper_users = 'User:*'", "'User:*' is nobody"),
        ("[ydb]\ndatabase = '/a//b'", "ydb.database = '/a//b': must be a path such as /local"),
    ],
)
def test_the_kind_and_the_bounds_of_a_value_are_told(file: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        given_(file=file, tmp_path=tmp_path)
    assert complaint in str(caught.value)


def test_values_are_taken_from_text_and_from_what_a_file_has(tmp_path: Path) -> None:
    flags = {"auth.required": "Yes", "sbp.tls": "1", "auth.open_health": "off", "node.id": " 1_000 "}
    file = (
        "[kafka]\nauto_create_topics = false\nmax_connections = 5.0\nnum_partitions = '7'\n[sbp]\npd = 'a:1, b:2 ,'\n"
    )
    settings = given_(flags | {"sbp.dialect": "sbp-0.2"}, {}, file, tmp_path).settings
    assert (settings.auth.required, settings.sbp.tls, settings.auth.open_health) == (True, True, False)
    assert (settings.node.id, settings.sbp.dialect, settings.sbp.pd) == (1000, "0.2", "a:1,b:2")
    kafka = settings.kafka
    assert (kafka.auto_create_topics, kafka.max_connections, kafka.num_partitions) == (False, 5, 7)


def test_what_contradicts_itself_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        given_({"sbp.mode": "external", "sbp.tls_cert": "a.pem"})
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [
        "sbp.mode",
        "sbp.tls_cert",
        "sbp.tls_ca",
    ]


def test_every_default_is_a_value_that_may_be_given() -> None:
    for row in given_().table():
        if not row.key.endswith(".NAME"):
            assert {one.key: one.value for one in given_({row.key: row.default}).table()}[row.key] == row.default


def test_settings_cannot_be_changed() -> None:
    settings = given_().settings
    with pytest.raises(AttributeError):
        settings.data_dir = Path("elsewhere")
    with pytest.raises(AttributeError):
        settings.kafka.group.max_size = 1


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        load({}, environ={}, file=tmp_path / "missing.toml")


def test_variables_of_the_command_line_are_no_settings() -> None:
    environ = {"ANABRANCH_NODE": "http://x", "ANABRANCH_CONFIG": "y", "OTHER": "z"}
    assert given_(environ=environ).settings == given_().settings


def test_variables_that_are_no_settings_are_warned_of_and_keep_nothing_from_starting() -> None:
    environ = {
        "ANABRANCH_PORT": "tcp://10.0.0.1:9092",
        "ANABRANCH_PORT_9092_TCP_ADDR": "10.0.0.1",
        "ANABRANCH_KAFKA__NUM_PARTITION": "3",
        "ANABRANCH_NODE__ID": "7",
    }
    loaded = given_(environ=environ)
    assert loaded.settings.node.id == 7
    assert len(loaded.warnings) == 3
    (misspelt,) = [told for told in loaded.warnings if "did you mean kafka.num_partitions" in told]
    assert misspelt.startswith("environment ANABRANCH_KAFKA__NUM_PARTITION: ")


def test_every_setting_is_described() -> None:
    for row in schema():
        assert row.description.endswith("."), row.key
        assert row.kind


SIZES = st.integers(0, 2**60)


@given(SIZES)
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size
    assert parse_duration(format_duration(size)) == size


@given(st.text(max_size=10))
def test_any_text_is_a_quantity_or_refused_with_a_reason(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) >= -1
        except ValueError as error:
            assert "must be" in str(error) or "whole" in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 2**26), ("1 KB", 1000), ("0.5k", 512), ("17", 17), ("-1", -1), ("2 tib", 2**41)]
)
def test_sizes_by_example(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "ms"), [("7d", 604_800_000), ("1.5h", 5_400_000), ("90s", 90_000), ("5m", 300_000), ("250ms", 250)]
)
def test_durations_by_example(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "x", "1.5", "0.0001k", "-2", "1e3", "5 parsecs", "²"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|whole"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.b:9092", Address("a.b", 9092)),
        ("[::1]:0", Address("::1", 0)),
        (":80", Address("127.0.0.1", 80)),
    ],
)
def test_addresses_are_read_as_they_are_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "::1:80", "host:-1", "host:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        Address.parse(text)


def test_what_is_no_setting_any_more_is_warned_of_with_its_value(tmp_path: Path) -> None:
    file = tmp_path / "anabranch.toml"
    file.write_text('[log]\nsnapshot_bytes = "1MiB"\n[kafka.group]\nmax_groups = 7\n')
    flags, environ = {"auth.key_ms": "1d", "node.id": "3"}, {"ANABRANCH_PRAVEGA__TABLE_PAGE": "nonsense"}
    loaded = load(flags, environ=environ, file=file)
    assert sorted(loaded.warnings) == [
        f"{file}: kafka.group.max_groups is fixed at 100000",
        f"{file}: log.snapshot_bytes is fixed at 64MiB",
        "command line: auth.key_ms is fixed at 30d",
        "environment ANABRANCH_PRAVEGA__TABLE_PAGE: pravega.table_page is fixed at 1000",
    ]
    assert loaded.settings.node.id == 3
    assert loaded.settings.log.snapshot_bytes == 64 * 1024**2
    for unknown in ("log.fields", "log.__settings__", "node.section", "log", "log.snapshot_bytes.x", "nothing.x"):
        with pytest.raises(SettingsError, match="unknown setting"):
            load({unknown: "1"}, environ={}, directory=tmp_path / "empty")


def test_settings_are_few() -> None:
    assert len(schema()) <= 130, "a bound that nobody tunes is a constant of its section"


def test_tls_is_set_by_listener_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "anabranch.toml"
    file.write_text('[tls.kafka]\ncert = "a.pem"\nkey = "a.key"\n')
    environ = {"ANABRANCH_TLS__KAFKA__CLIENT_CA": "ca.pem", "ANABRANCH_TLS__LINE_TWO__KEY": "b.key"}
    flags = {"tls.line-two.cert": "b.pem", "tls.kafka.client": "optional"}
    settings = load(flags, environ=environ, file=file).settings
    assert tls_files(settings.tls) == {
        "kafka": TlsFiles(Path("a.pem"), Path("a.key"), Path("ca.pem"), client_required=False),
        "line-two": TlsFiles(Path("b.pem"), Path("b.key")),
    }


@pytest.mark.parametrize("key", ["tls.cert", "tls.kafka", "tls"])
def test_tls_without_a_listener_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tls"):
        load({key: "a.pem"}, environ={}, directory=tmp_path)


def test_the_login_at_a_schema_registry_is_never_shown() -> None:
    for login, shown in (("me:hunter2@", "me:***@"), (":hunter2@", ":***@"), ("", "")):
        loaded = load({}, environ={"ANABRANCH_SCHEMAS__REGISTRY": f"https://{login}registry:8081/x"}, fronts=())
        (row,) = [one for one in loaded.table() if one.key == "schemas.registry"]
        assert row.value == f"https://{shown}registry:8081/x"
        assert loaded.settings.schemas.registry == f"https://{login}registry:8081/x"
    for wrong in ("registry:8081", "ftp://hunter2@x", "https://", "https://[hunter2", "https://x?hunter2"):
        with pytest.raises(SettingsError, match="must be like https://USER:PASSWORD@HOST:PORT/PATH") as refused:
            load({"schemas.registry": wrong}, environ={}, fronts=())
        assert "hunter2" not in str(refused.value)


def test_the_password_of_a_database_is_never_shown() -> None:
    given = {"ANABRANCH_CLUSTER__DATABASE": "postgresql://me:hunter2@db:5432/all?sslpassword=hunter2&sslmode=require"}
    loaded = load({}, environ=given, fronts=())
    (row,) = [one for one in loaded.table() if one.key == "cluster.database"]
    assert row.value == "postgresql://me:***@db:5432/all?sslpassword=***&sslmode=require"
    assert loaded.settings.cluster.database == given["ANABRANCH_CLUSTER__DATABASE"]
    for wrong in ("mysql://me:hunter2@db/all", "host=db password=hunter2", "postgresql://[hunter2"):
        with pytest.raises(SettingsError, match="must be like postgresql://USER@HOST/DATABASE") as refused:
            load({"cluster.database": wrong}, environ={}, fronts=())
        assert "hunter2" not in str(refused.value)
