"""One client of Pravega's in a process of its own: while it waits for a node that is down, the wheel lets no other
thread of its process run.

    python -m tests.torture.torture_pravega_client KIND --controller HOST:PORT --seed 7 --name pravega-writer --rate 300

Prints a line for everything it is told, as soon as it is told it. Ends when its input does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

from pravega_client import StreamManager, TxnFailedException

from tests.kit.wheel import next_slice
from tests.torture.torture_load import payload

SCOPE, STREAM, GROUP = "torture", "events", "torture"
KEYS = 5
_TRANSACTION = 4
"""Events of one, at least, about: fewer would be no transaction to speak of."""
_READER_LIFE_S = 1.5


def key_of(number: int) -> int:
    """The routing key of an event."""
    return number % KEYS


def _tell(*words: object) -> None:
    print(*words, flush=True)


def _keep_to_ourselves() -> None:
    """Take standard output for :func:`_tell` alone: the wheel writes its log there, now to standard error."""
    alone = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(alone, "w", encoding="utf-8")


class _Client:
    """What all kinds have."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.streams = StreamManager(f"tcp://{args.controller}")
        self.finish = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        while input_line():
            pass
        self.finish.set()

    def payload(self, number: int) -> bytes:
        return payload(self.args.seed, self.args.name, number)

    def paced(self, burst: int = 1) -> Iterator[int]:
        """How many events are due from now on, about ``burst`` at least, until the end."""
        done, began = 0, time.monotonic()
        while not self.finish.is_set():
            due = int((time.monotonic() - began) * self.args.rate)
            if due > done:
                yield min(due - done, 200)
                done = due
            self.finish.wait(max(0.02, burst / self.args.rate))


def input_line() -> str:
    """The next line of the input; empty at its end."""
    try:
        return input() + "\n"
    except EOFError:
        return ""


def write(client: _Client) -> None:
    """Events with routing keys, some hundred on the way: ``acked A B`` says that those from A to before B were."""
    writer = client.streams.create_writer(SCOPE, STREAM, max_inflight_events=500)
    number = 0
    for count in client.paced():
        for _ in range(count):
            writer.write_event_bytes(client.payload(number), routing_key=str(key_of(number)))
            number += 1
        _tell("sent", number, number)
        writer.flush()
        _tell("acked", number - count, number)


def transact(client: _Client) -> None:
    """Transactions, most committed, some aborted, some left: a line before and behind each word to the controller."""
    choice = random.Random(client.args.seed)
    writer = client.streams.create_transaction_writer(SCOPE, STREAM, choice.getrandbits(60))
    number = 0
    for count in client.paced(_TRANSACTION):
        first, number = number, number + min(count, 40)
        _tell("open", first, number)
        try:
            transaction = writer.begin_txn()
            for one in range(first, number):
                transaction.write_event_bytes(client.payload(one), routing_key=str(key_of(one)))
            what = choice.choices(("commit", "abort", "leave"), (6, 3, 1))[0]
            if what == "commit":
                _tell("asked", first, number)
                transaction.commit()
                _tell("committed", first, number)
            elif what == "abort":
                transaction.abort()
                _tell("aborted", first, number)
        except (TxnFailedException, ValueError) as error:
            _tell("failed", first, number, repr(error))


def read(client: _Client) -> None:
    """Readers of a group, one after the other: ``read NAME NUMBER`` for each event."""
    group = client.streams.create_reader_group(GROUP, SCOPE, STREAM)

    async def life(number: int) -> None:
        reader = group.create_reader(f"{client.args.name}-{number}")
        end = time.monotonic() + _READER_LIFE_S
        while time.monotonic() < end or client.finish.is_set():
            told = []
            for event in await next_slice(reader):  # waits at the ends of segments
                name, place, _ = event.split(b":", 2)
                told.append(f"read {name.decode()} {int(place)}")
            _tell("\n".join(told))
        reader.reader_offline()

    number = 0
    while True:
        asyncio.run(life(number))
        number += 1


KINDS: dict[str, Callable[[_Client], None]] = {"write": write, "transact": transact, "read": read}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rate", type=float, default=300.0, help="events in a second")
    args = parser.parse_args()
    _keep_to_ourselves()
    KINDS[args.kind](_Client(args))


if __name__ == "__main__":
    main()
