"""The process that decodes and encodes, one value at a time: what a value costs ends here.

A value may take a second of processor time, and the process some memory; a library that goes on is ended by the kernel.
The node takes the end of the process for the answer, and starts another one (:mod:`bridges.console.schemas.decoding`).
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from bridges.console.schemas.codecs import Codec, Unfit, make_codec
from bridges.console.schemas.jobs import MOST_SECONDS, NO_MEMORY, Job, Result, read_frame, write_frame
from bridges.extras import remedy

MOST_TEXT = 256 * 1024
"""Longest JSON, in bytes, that a value becomes."""
_MEMORY = 256 * 1024**2
_MODULES = {
    "AVRO": ("fastavro",),
    "JSON": ("jsonschema",),
    "PROTOBUF": ("google.protobuf.json_format", "grpc_tools.protoc"),
}
"""What a kind of schema needs, read before its time is measured."""


def main() -> None:
    """Answer until standard input ends."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.nice(10)  # clients of the node come first
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, the machine ends this process first
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    codecs: dict[int, Codec] = {}

    def work(job: Job) -> bytes:
        if job.definition is not None:
            codecs[job.number] = make_codec(job.definition.kind, job.definition.text, job.definition.references)
            return b""
        codec = codecs[job.number]
        if job.encode:
            return codec.encode(job.data.decode())
        data = codec.decode(job.data, job.indexes).encode()
        if len(data) > MOST_TEXT:
            raise Unfit(f"decoded, it has {len(data)} bytes, more than the {MOST_TEXT} that are shown")
        return data

    while (frame := read_frame(source)) is not None:
        job = msgspec.msgpack.decode(frame, type=Job)
        try:
            if job.definition is not None:
                for module in _MODULES.get(job.definition.kind, ()):
                    import_module(module)
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)  # no handler: the kernel ends the process
            result = Result(work(job), "")
        except MemoryError:
            os._exit(NO_MEMORY)
        except Exception as error:  # noqa: BLE001 - the answer has it: each library raises its own
            result = Result(b"", _reason(error))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(sink, msgspec.msgpack.encode(result))


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"this node lacks {error.name}: {remedy(error) or error}"
    told = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
    return " ".join(told.split())[:1000]


if __name__ == "__main__":
    main()
