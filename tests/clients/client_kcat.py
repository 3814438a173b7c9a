"""kcat from Debian: an old librdkafka (2.0), as scripts use it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.api import Abilities, Client, ClientError, Got, Headers, Rec
from tests.clients.sharing import PATIENCE_SECONDS

END_OF_RECORD = b"<<end of record>>"
KEY_DELIMITER = b"<<key>>"


def render_headers(headers: Headers) -> bytes:
    """Headers as kcat prints them: name=value with commas between, NULL for no value, C strings that end at a zero."""
    shown = ((name.encode(), b"NULL" if value is None else value.partition(b"\0")[0]) for name, value in headers)
    return b",".join(name + b"=" + value for name, value in shown)


class KcatClient(Client):
    """Its output shows headers only as text, so a record that was read has one header "kcat" with that text."""

    name = "kcat"
    abilities = Abilities(
        own_timestamps=False,
        binary_everywhere=False,
        null_headers=False,
        acknowledged_offsets=False,
        shares=False,
        asks_without_creating=False,
        admin=frozenset({"topics", "partition_count", "offset"}),
    )

    def _run(self, *arguments: str, data: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.bootstrap, "-m", str(int(PATIENCE_SECONDS)), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        # Compression that the library cannot use with this broker is only a warning of its own, and then nothing is
        # compressed: a compatibility failure all the same.
        if done.returncode != 0 or b"not compressing" in done.stderr:
            raise ClientError(-1, f"kcat ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
        return done.stdout

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        settings = ["-X", f"compression.codec={codec}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        settings += ["-X", "linger.ms=20", "-X", "acks=all"]
        # One run writes records with one set of headers: as many runs as there are changes of headers.
        start = 0
        while start < len(records):
            end = start
            while end < len(records) and records[end].headers == records[start].headers:
                end += 1
            self._write(topic, partition, records[start:end], settings)
            start = end
        return []

    def _write(self, topic: str, partition: int, records: Sequence[Rec], settings: list[str]) -> None:
        arguments = ["-P", "-t", topic, "-p", str(partition), "-Z", *settings]
        for name, value in records[0].headers:
            assert value is not None
            arguments += ["-H", f"{name}={value.decode()}"]
        arguments += ["-K", KEY_DELIMITER.decode(), "-D", END_OF_RECORD.decode()]
        lines = [(record.key or b"") + KEY_DELIMITER + (record.value or b"") for record in records]
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(END_OF_RECORD.join(lines))
            self._run(*arguments, "-l", file.name)

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        got: list[Got] = []
        for partition, count in counts.items():
            if count:
                start = (starts or {}).get(partition)
                where = ["-t", topic, "-p", str(partition), "-o", "beginning" if start is None else str(start)]
                got += self._read("-C", *where, "-c", str(count), "-e", "-X", "fetch.wait.max.ms=100")
        return got

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        assert protocol == "classic"
        settings = ["-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=100"]
        return self._read("-c", str(count), *settings, "-G", group, topic)

    def _read(self, *arguments: str) -> list[Got]:
        # In group mode everything after the group's name is a topic: so options come first.
        layout = f"%p %o %T %K %S|%k%s%h{END_OF_RECORD.decode()}"
        output = self._run("-q", "-f", layout, *arguments)
        return [_parse(chunk) for chunk in output.split(END_OF_RECORD)[:-1]]

    def topics(self) -> list[str]:
        return re.findall(r'topic "([^"]+)"', self._run("-L").decode())

    def partition_count(self, topic: str) -> int:
        text = self._run("-L", "-t", topic).decode()
        found = re.search(r"with (\d+) partitions", text)
        if found is None or int(found[1]) == 0:
            raise ClientError(3, text)
        return int(found[1])

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        wanted = {"earliest": "-2", "latest": "-1"}.get(str(at), str(at))
        text = self._run("-Q", "-t", f"{topic}:{partition}:{wanted}").decode()
        return int(text.rsplit(maxsplit=1)[-1])


def _parse(chunk: bytes) -> Got:
    numbers, _, rest = chunk.partition(b"|")
    partition, offset, timestamp, key_size, value_size = (int(number) for number in numbers.split())
    key_end = max(key_size, 0)
    value_end = key_end + max(value_size, 0)
    headers = rest[value_end:]
    return Got(
        key=None if key_size < 0 else rest[:key_end],
        value=None if value_size < 0 else rest[key_end:value_end],
        headers=(("kcat", headers),) if headers else (),
        timestamp=timestamp,
        partition=partition,
        offset=offset,
    )
