"""Writes numbered events with routing keys to a stream of Pravega's at a steady rate.

    events.py --controller pravega:9090 --scope shop --stream clicks --rate 50

Prints how many were acknowledged, every ten seconds and when it is told to end; once the stream is there port 9100 has
metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
import time
from typing import NoReturn

from pravega_client import StreamManager, StreamRetentionPolicy, StreamScalingPolicy
from prometheus_client import Counter, start_http_server

KEYS = 16
SEGMENTS = 2
TELL_S = 10.0


def write(args: argparse.Namespace, finish: threading.Event, told: Counter) -> int:
    """Until told to end; how many events were acknowledged."""
    streams = StreamManager(f"tcp://{args.controller}")
    streams.create_scope(args.scope)
    streams.create_stream_with_policy(
        args.scope,
        args.stream,
        StreamScalingPolicy.fixed_scaling_policy(SEGMENTS),
        StreamRetentionPolicy.none(),
    )
    start_http_server(args.metrics)
    writer = streams.create_writer(args.scope, args.stream, max_inflight_events=500)
    run, began, count, last = secrets.token_hex(4), time.monotonic(), 0, 0.0
    while not finish.wait(0.05):
        due = int((time.monotonic() - began) * args.rate)
        if due == count:
            continue
        for number in range(count, due):
            writer.write_event(f"{run}:{number}", routing_key=str(number % KEYS))
        writer.flush()
        told.inc(due - count)
        count = due
        if time.monotonic() - last > TELL_S:
            last = time.monotonic()
            print(json.dumps({"acknowledged": count}), flush=True)
    return count


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller", required=True)
    parser.add_argument("--scope", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="events a second")
    parser.add_argument("--metrics", type=int, default=9100, help="port")
    args = parser.parse_args()
    finish = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: finish.set())
    count = write(args, finish, Counter("events_acknowledged", "Events that were acknowledged."))
    print(json.dumps({"acknowledged": count}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the library's threads wait for servers that may be gone


if __name__ == "__main__":
    main()
