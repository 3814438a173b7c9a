"""The command line against nodes in processes of their own."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridges.version import VERSION, find_commit, version_line
from kafka_front.wire import codec
from kafka_front.wire import messages as m
from tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

LISTEN = {
    "kafka": "127.0.0.1:0",
    "console": "127.0.0.1:0",
    "sbp-pd": "127.0.0.1:0",
    "sbp-range-server": "127.0.0.1:0",
}


def run(
    *arguments: str,
    node: NodeProcess | None = None,
    stdin: bytes = b"",
    environ: dict[str, str] | None = None,
    **options,
) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    if node is not None:
        environment["ANABRANCH_NODE"] = node.console
    environment.update(environ or {})
    return subprocess.run(
        [sys.executable, "-m", "bridges", *arguments],
        input=stdin,
        capture_output=True,
        env=environment,
        timeout=60,
        **options,
    )


def ok(*arguments: str, node: NodeProcess, stdin: bytes = b"", environ: dict[str, str] | None = None) -> bytes:
    done = run(*arguments, node=node, stdin=stdin, environ=environ)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def records(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("cli") / "data", listen=LISTEN).lent() as node:
        yield node


def test_life_of_a_topic(one: NodeProcess) -> None:
    (made,) = json.loads(
        ok("topic", "create", "life", "--partitions", "2", "--config", "retention.ms=5000", "--json", node=one)
    )
    assert [partition["partition"] for partition in made["partitions"]] == [0, 1]
    assert made["config"] == {"retention.ms": "5000"}
    assert made["effective_config"]["max.message.bytes"] == "1048588"
    assert made["names"] == {"pravega": "default/life", "ydb": "life"}
    assert "life" in [topic["name"] for topic in json.loads(ok("topic", "list", "--json", node=one))]
    assert b"life   " in ok("topic", "list", node=one)
    altered = ok(
        "topic", "alter", "life", "--partitions", "3", "--config", "cleanup.policy=compact",
        "--delete-config", "retention.ms", "--json", node=one,
    )  # fmt: skip
    assert json.loads(altered)["config"] == {"cleanup.policy": "compact"}
    assert len(json.loads(altered)["partitions"]) == 3
    described = ok("topic", "describe", "life", node=one).decode()
    assert "cleanup.policy = compact" in described
    assert "retention.ms" not in described
    assert "retention.ms = 604800000" in ok("topic", "describe", "life", "--all", node=one).decode()
    assert json.loads(ok("topic", "delete", "life", "--yes", "--json", node=one)) == [{"deleted": "life"}]
    assert run("topic", "describe", "life", node=one).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["topic", "create", "a b"], 1, "has other characters"),
        (["topic", "create", "x", "--config", "nope=1"], 1, "'nope' is not a topic configuration"),
        (["topic", "create", "x", "--config", "nope"], 2, "is not KEY=VALUE"),
        (["topic", "create", "x", "--partitions", "0"], 2, "--partitions"),
        (["topic", "describe", "missing"], 1, "there is no topic 'missing'"),
        (["topic", "delete", "missing", "--yes"], 1, "there is no topic 'missing'"),
        (["topic", "alter", "missing"], 2, "nothing to change"),
        (["topic", "alter", "missing", "--partitions", "2"], 1, "there is no topic"),
        (["produce", "missing"], 1, "there is no topic"),
        (["tail", "missing"], 1, "there is no topic"),
        (["tail", "missing", "--from", "yesterday"], 2, "is none of 'earliest'"),
        (["group", "describe", "missing"], 1, "there is no group"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_failures_are_one_clear_sentence(one: NodeProcess, arguments: Sequence[str], code: int, message: str) -> None:
    done = run(*arguments, node=one)
    assert done.returncode == code
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "delete", "kept"],
        ["topic", "skip", "kept", "0", "--force"],
        ["transaction", "abort", "kept"],
        ["transaction", "abort", "kept", "7"],
        ["transaction", "commit", "kept", "7"],
        ["acl", "remove", "--resource", "topic"],
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_undone_is_refused_where_nobody_can_be_asked(arguments: list[str], as_json: bool) -> None:
    with nobody_answers() as node:
        done = run(*arguments, *(["--json"] if as_json else []), "--node", node, stdin=b"y\n")
    told = done.stderr.decode()
    if arguments[0] == "acl" and not as_json:
        assert done.returncode == 3, "it shows the rules first"
        return
    assert done.returncode == 2
    assert "--yes" in (json.loads(told)["error"] if as_json else told)


@contextmanager
def nobody_answers() -> Iterator[str]:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but it does not listen
        yield f"http://127.0.0.1:{nobody.getsockname()[1]}"


def test_failures_as_json(one: NodeProcess) -> None:
    done = run("topic", "describe", "missing", "--json", node=one)
    assert json.loads(done.stderr) == {"error": "there is no topic 'missing'", "kind": "TopicNotFound"}


def test_no_node_answers() -> None:
    with nobody_answers() as node:
        done = run("topic", "list", "--node", node)
    assert done.returncode == 3
    assert b"no node answers at http://127.0.0.1" in done.stderr


def test_an_address_that_is_none() -> None:
    assert run("topic", "list", "--node", "ftp://x").returncode == 2
    assert run("topic", "list", "--node", "http://x:99999999").returncode == 2


def test_produce_and_tail(one: NodeProcess) -> None:
    ok("topic", "create", "words", "--partitions", "1", node=one)
    lines = b"".join(b"%d\n" % number for number in range(3000)) + b"\xff\xfe\nlast without newline"
    told = json.loads(ok("produce", "words", "--json", node=one, stdin=lines))
    assert told["records"] == 3002
    assert told["partitions"] == {"0": {"first": 0, "next": 3002, "records": 3002}}
    assert ok("tail", "words", node=one) == lines + b"\n"
    assert ok("tail", "words", "--from", "2999", "-n", "1", node=one) == b"2999\n"
    assert ok("tail", "words", "--from", "latest", node=one) == b""
    assert ok("tail", "words", "--limit", "0", node=one) == b""
    (record,) = records(ok("tail", "words", "--from", "3000", "-n", "1", "--json", node=one))
    assert record["value_base64"] == "//4="
    assert (record["partition"], record["offset"], record["key"]) == (0, 3000, None)
    done = run("tail", "words", "--from", "4000", node=one)
    assert done.returncode == 1
    assert b"outside [0, 3002]" in done.stderr


def test_keys_decide_partitions_and_records_can_be_copied(one: NodeProcess) -> None:
    ok("topic", "create", "keyed", "--partitions", "4", node=one)
    ok("topic", "create", "copy", "--partitions", "4", node=one)
    lines = b"".join(b"k%d:v:%d\n" % (number % 10, number) for number in range(100))
    ok("produce", "keyed", "--key-separator", ":", node=one, stdin=lines)
    found = records(ok("tail", "keyed", "--json", node=one))
    assert len(found) == 100
    places: dict[object, set[object]] = {}
    for record in found:
        places.setdefault(record["key"], set()).add(record["partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len({partition for partitions in places.values() for partition in partitions}) > 1
    assert {record["value"] for record in found} == {f"v:{number}" for number in range(100)}
    # What tail prints, produce takes: same partitions, keys, timestamps.
    ok("produce", "copy", "--records", node=one, stdin=ok("tail", "keyed", "--json", node=one))
    assert records(ok("tail", "copy", "--json", node=one)) == found
    text = ok("tail", "keyed", "--keys", "--partition", str(found[0]["partition"]), "-n", "1", node=one)
    assert text == f"{found[0]['partition']}\t0\t{found[0]['key']}\t{found[0]['value']}\n".encode()


def test_a_wrong_line_is_named_and_what_was_stored_is_told(one: NodeProcess) -> None:
    ok("topic", "create", "lines", node=one)
    good = b'{"value": "x"}\n' * 2500
    done = run("produce", "lines", "--records", "--json", node=one, stdin=good + b'{"vale": 1}\n')
    assert done.returncode == 1
    told = json.loads(done.stderr)
    assert told["line"] == 2501
    assert "unknown field 'vale'" in told["error"]
    assert told["stored"] == len(ok("tail", "lines", node=one).splitlines())
    done = run("produce", "lines", "--records", node=one, stdin=b'{"partition": 7, "value": "x"}\n')
    assert done.returncode == 1
    assert b"line 1: topic 'lines' has no partition 7" in done.stderr


def test_a_compacted_topic_wants_keys(one: NodeProcess) -> None:
    ok("topic", "create", "compacted", "--config", "cleanup.policy=compact", node=one)
    assert b"without a key" in run("produce", "compacted", node=one, stdin=b"x\n").stderr
    ok("produce", "compacted", "--key-separator", "=", node=one, stdin=b"k=x\n")


def test_large_records_are_kept_whole_and_too_large_ones_refused(one: NodeProcess) -> None:
    ok("topic", "create", "large", "--config", "max.message.bytes=1500000", node=one)
    ok("produce", "large", node=one, stdin=b"x" * 1_400_000)
    for size, why in ((1_600_000, b"exceeds max.message.bytes"), (4_200_000, b"longer than 4194304 bytes")):
        done = run("produce", "large", node=one, stdin=b"y" * size)
        assert done.returncode == 1
        assert why in done.stderr
    assert ok("tail", "large", node=one) == b"x" * 1_400_000 + b"\n"


def test_following_shows_records_as_they_arrive(one: NodeProcess) -> None:
    ok("topic", "create", "live", "--partitions", "2", node=one)
    environment = {**os.environ, "ANABRANCH_NODE": one.console}
    command = [sys.executable, "-m", "bridges", "tail", "live", "--follow", "--from", "earliest", "--limit", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as follower:
        assert follower.stdout is not None
        for value in (b"a", b"b", b"c"):
            ok("produce", "live", node=one, stdin=value)
            assert follower.stdout.readline() == value + b"\n"
        ok("produce", "live", "--partition", "1", node=one, stdin=b"d")
        assert follower.stdout.readline() == b"d\n"
        assert follower.wait(30) == 0


def test_a_producer_that_stays_open_is_not_made_to_wait(one: NodeProcess) -> None:
    ok("topic", "create", "typing", node=one)
    environment = {**os.environ, "ANABRANCH_NODE": one.console}
    command = [sys.executable, "-m", "bridges"]
    with (
        subprocess.Popen([*command, "produce", "typing"], stdin=subprocess.PIPE, env=environment) as producer,
        subprocess.Popen(
            [*command, "tail", "typing", "-f", "--from", "earliest", "-n", "2"], stdout=subprocess.PIPE, env=environment
        ) as follower,
    ):
        assert producer.stdin is not None
        assert follower.stdout is not None
        for line in (b"first\n", b"second\n"):
            producer.stdin.write(line)
            producer.stdin.flush()
            assert follower.stdout.readline() == line
        producer.stdin.close()
        assert producer.wait(30) == 0


def test_following_ends_when_the_topic_does(one: NodeProcess) -> None:
    ok("topic", "create", "doomed", node=one)
    ok("produce", "doomed", node=one, stdin=b"x")
    environment = {**os.environ, "ANABRANCH_NODE": one.console}
    command = [sys.executable, "-m", "bridges", "tail", "doomed", "-f", "--from", "earliest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == b"x\n"
        ok("topic", "delete", "doomed", "--yes", node=one)
        assert follower.wait(30) == 1
        assert b"was deleted" in follower.stderr.read()


def scrape(node: NodeProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"{node.console}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_the_commands_wrote_and_read(one: NodeProcess) -> None:
    ok("topic", "create", "counted", "--partitions", "2", node=one)
    ok("produce", "counted", "--partition", "1", node=one, stdin=b"a\nb\nc\n")
    ok("tail", "counted", "--limit", "2", node=one)
    found = scrape(one)
    topic = (("front", "http"), ("topic", "counted"))
    assert found["anabranch_appended_records_total", topic] == 3
    assert found["anabranch_fetched_records_total", topic] == 2
    assert found["anabranch_partition_end_offset", (("partition", "1"), ("topic", "counted"))] == 3
    kind = (("front", "http"), ("kind", "POST /api/topics/{topic}/records"))
    assert found["anabranch_request_seconds_count", kind] >= 1
    for name in ("anabranch_topics", "anabranch_partitions", "anabranch_groups", "anabranch_store_groups_total"):
        assert (name, ()) in found
    http = (("front", "http"),)
    assert found["anabranch_connections", http] == 1, "the one that asks"
    assert found["anabranch_connections_opened_total", http] > 1
    (build,) = (dict(labels) for name, labels in found if name == "anabranch_build_info")
    commit = build.pop("commit")  # another one, if somebody commits while the tests run
    assert build == {"python": platform.python_version(), "version": VERSION}
    assert not commit or re.fullmatch("[0-9a-f]{40}", commit)
    assert 0 <= time.time() - found["anabranch_start_time_seconds", ()] < 600
    assert found["anabranch_store_append_bytes_total", ()] > 0


def test_the_console_page_and_its_parts_are_served(one: NodeProcess) -> None:
    with urllib.request.urlopen(one.console) as response:
        page = response.read().decode()
    assert "<title>Anabranch</title>" in page
    for path in ("/static/app.js", "/static/console.css"):
        assert path in page
        with urllib.request.urlopen(one.console + path) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/topics", b"{", 400),
        ("POST", "/api/topics", b"[]", 400),
        ("POST", "/api/topics", b"{}", 400),
        ("POST", "/api/topics", b'{"name": "x", "color": 1}', 400),
        ("POST", "/api/topics", b'{"name": "x", "partitions": "2"}', 400),
        ("POST", "/api/topics", b'{"name": "x", "config": {"retention.ms": []}}', 400),
        ("POST", "/api/topics", b'{"name": "x", "padding": "' + b"x" * 2**21 + b'"}', 413),
        ("GET", "/api/topics/nope", None, 404),
        ("GET", "/api/nope", None, 404),
        ("PUT", "/api/topics", b"", 405),
        ("GET", "/api/topics/nope/records", None, 404),
        ("GET", "/static/../api.py", None, 404),
    ],
)
def test_wrong_requests_are_answered_with_their_status_and_an_error(
    one: NodeProcess, method: str, path: str, body: bytes | None, status: int
) -> None:
    request = urllib.request.Request(one.console + path, data=body, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == status
    assert "error" in json.load(caught.value)


def test_pages_of_other_sites_change_nothing(one: NodeProcess) -> None:
    body = json.dumps({"name": "foreign"}).encode()
    for origin, allowed in (("http://evil.example", False), ("null", False), (one.console, True)):
        request = urllib.request.Request(
            f"{one.console}/api/topics", data=body, method="POST", headers={"Origin": origin}
        )
        if allowed:
            assert urllib.request.urlopen(request).status == 201
        else:
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            assert caught.value.code == 403


def test_validate_only_creates_nothing(one: NodeProcess) -> None:
    body = json.dumps({"name": "maybe", "validate_only": True}).encode()
    request = urllib.request.Request(f"{one.console}/api/topics", data=body, method="POST")
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["validate_only"] is True
    assert run("topic", "describe", "maybe", node=one).returncode == 1


# --- the process ----------------------------------------------------------------------------------------------------


def test_a_second_node_is_refused(one: NodeProcess) -> None:
    done = run("serve", "--data", str(one.data), *(f"--listen={name}=127.0.0.1:0" for name in LISTEN))
    assert done.returncode == 4
    assert f"is in use by process {one.pid}".encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_address_that_is_taken(one: NodeProcess, tmp_path: Path) -> None:
    taken = one.addresses["kafka"]
    done = run(
        "serve", "--data", str(tmp_path / "data"), "--listen", f"kafka={taken}",
        *(f"--listen={name}=off" for name in ("console", "sbp-pd", "sbp-range-server")),
    )  # fmt: skip
    assert done.returncode == 4
    assert b"Traceback" not in done.stderr
    assert b"in use" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "kafka.nope=1"], "unknown setting 'kafka.nope'"),
        (["--set", "nonsense"], "is not KEY=VALUE"),
        (["--listen", "nope=127.0.0.1:0"], "there is no listener 'nope'"),
        (["--listen", "kafka=127.0.0.1"], "is not HOST:PORT"),
        (["--config", "/does/not/exist.toml"], "exist.toml"),
    ],
)
def test_wrong_settings_end_the_start(arguments: Sequence[str], message: str, tmp_path: Path) -> None:
    done = run("serve", "--data", str(tmp_path / "data"), *arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_config_shows_values_and_origins(tmp_path: Path) -> None:
    (tmp_path / "anabranch.toml").write_text("[kafka]\nnum_partitions = 5\n")
    done = run(
        "config", "--json", "--set", "log.tail_cache_bytes=1MiB", cwd=tmp_path,
        environ={"ANABRANCH_NODE__ID": "9", "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert (rows["kafka.num_partitions"]["value"], rows["kafka.num_partitions"]["origin"]) == ("5", "anabranch.toml")
    assert (rows["node.id"]["value"], rows["node.id"]["origin"]) == ("9", "environment ANABRANCH_NODE__ID")
    assert rows["log.tail_cache_bytes"]["value"] == "1MiB"
    assert rows["log.tail_cache_bytes"]["default"] == "32MiB"
    assert rows["kafka.fetch_sessions"]["origin"] == "default"
    assert run("config", "--set", "x=1").returncode == 2
    assert b"SETTING" in run("config").stdout


def test_every_way_of_asking_names_the_version_and_the_commit() -> None:
    find_commit.cache_clear()  # somebody may have committed since
    assert run("version").stdout.decode() == run("--version").stdout.decode() == f"{version_line()}\n"
    found = json.loads(run("version", "--json").stdout)
    assert (found["version"], found["commit"]) == (VERSION, find_commit())


def test_sigterm_finishes_what_is_in_flight_and_removes_the_ready_file(
    node_factory: Callable[..., NodeProcess],
) -> None:
    node = node_factory(listen=LISTEN)
    ok("topic", "create", "t", node=node)
    environment = {**os.environ, "ANABRANCH_NODE": node.console}
    command = [sys.executable, "-m", "bridges", "tail", "t", "-f", "--from", "earliest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as follower:
        assert follower.stdout is not None
        ok("produce", "t", node=node, stdin=b"x")
        assert follower.stdout.readline() == b"x\n"
        # A stream that never ends by itself does not keep the node from stopping.
        assert node.terminate() == 0
        follower.wait(30)
    assert not node.ready_file.exists()
    node.start()
    assert ok("tail", "t", node=node) == b"x\n"
    assert node.terminate() == 0


def test_acknowledged_records_and_topics_survive_kill(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory(listen=LISTEN)
    stored: list[bytes] = []
    for round_ in range(3):
        ok("topic", "create", f"t{round_}", "--partitions", "2", node=node)
        line = b"round %d" % round_
        ok("produce", "t0", "--partition", "0", node=node, stdin=line)
        stored.append(line)
        # One that is cut off in the middle of a long upload: whatever it stored, the acknowledged lines stay.
        environment = {**os.environ, "ANABRANCH_NODE": node.console}
        with subprocess.Popen(
            [sys.executable, "-m", "bridges", "produce", "t0", "--partition", "1"],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, bufsize=0,
        ) as producer:  # fmt: skip
            assert producer.stdin is not None
            follow = [sys.executable, "-m", "bridges", "tail", "t0", "--partition", "1", "-f"]
            with subprocess.Popen(
                [*follow, "--from", "earliest"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            ) as follower:
                assert follower.stdout is not None
                feeder = threading.Thread(target=feed, args=(producer,))
                feeder.start()
                for _ in range(200):
                    assert follower.stdout.readline()
                node.kill()
                feeder.join()
                producer.wait(30)
        node.start()
        assert ok("tail", "t0", "--partition", "0", node=node).splitlines() == stored
        names = [topic["name"] for topic in json.loads(ok("topic", "list", "--json", node=node))]
        assert names == [f"t{number}" for number in range(round_ + 1)]
        kept = ok("tail", "t0", "--partition", "1", node=node).splitlines()
        assert len(kept) >= 200
        assert set(kept) == {b"line"}
    assert node.terminate() == 0


def feed(producer: subprocess.Popen[bytes]) -> None:
    assert producer.stdin is not None
    try:
        while True:
            producer.stdin.write(b"line\n" * 100)
            producer.stdin.flush()
    except OSError:
        return  # the producer noticed that the node is gone


def test_a_store_that_cannot_write_ends_the_node(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory(listen=LISTEN)
    ok("topic", "create", "t", node=node)
    ok("produce", "t", node=node, stdin=b"before")
    process = node.process
    assert process is not None
    # From now on every write to a file fails, those to the log's included.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert run("produce", "t", node=node, stdin=b"after").returncode != 0
    assert process.wait(60) == 5
    node.process = None
    node.start()
    assert ok("tail", "t", node=node) == b"before\n"


def test_a_second_signal_does_not_wait_for_anybody(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory(listen=LISTEN, settings={"node.drain_timeout_ms": "1h"})
    ok("topic", "create", "large", node=node)
    ok("produce", "large", node=node, stdin=(b"x" * 900_000 + b"\n") * 16)
    # A Kafka client that takes nothing of an answer which is larger than what the kernel keeps for it.
    partition = m.FetchRequest.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 30)
    topic = m.FetchRequest.FetchTopic(topic="large", partitions=[partition])
    request = m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=[topic])
    host, port = node.addresses["kafka"].rsplit(":", 1)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(b"".join(codec.encode_request(11, 1, "slow", request)))
        client.recv(1)  # the answer has begun
        os.kill(node.pid, signal.SIGTERM)
        process = node.process
        assert process is not None
        # Two signals that come before the first was seen are one.
        while node.ready_file.exists():
            assert process.poll() is None
        os.kill(node.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert "the stop gave up requests in flight" in node.tail(), "there was nothing to wait for"
    node.process = None
