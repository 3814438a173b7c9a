"""Coverage-guided fuzzing of the SBP decoders, every dialect, requests and responses. Needs atheris:

    python -m pip install atheris
    python tests/fuzz/fuzz_sbp_frames.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_sbp_frames.py --seeds CORPUS_DIRECTORY`` writes one request of every kind for every dialect.
The first byte of an input chooses the dialect and the direction, the rest is what a peer would send.
"""

from __future__ import annotations

from sbp_back.errors import DecodeError, SbpError
from sbp_back.wire import model as m
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.frame import encode_frame
from sbp_back.wire.v02 import DialectV02
from tests.fuzz.harness import run
from tests.kit.sbp_frames import Frames
from tests.sbp_document.document_lab import DIALECTS

RESPONSES = 0x80
SPEAKERS = tuple(DIALECTS.values())


def one_input(data: bytes) -> None:
    """Bytes either form frames that decode, or raise one of the two typed errors; requests can be sent on again."""
    if not data:
        return
    dialect = SPEAKERS[(data[0] & ~RESPONSES) % len(SPEAKERS)]
    try:
        frames = Frames().feed(data[1:])
    except DecodeError:
        return
    for frame in frames:
        try:
            if data[0] & RESPONSES:
                dialect.decode_response(frame.opcode, frame.flags, frame.header, frame.payload, frame.crc)
                continue
            request = dialect.decode_request(frame.opcode, frame.header, frame.payload, frame.crc)
        except (DecodeError, SbpError):
            continue
        opcode, header, payload = dialect.encode_request(request)
        again = dialect.decode_request(opcode, header, b"".join(payload))
        assert type(again) is type(request)


def requests() -> list[m.Request]:
    """One of every kind, with something in every field that is a list."""
    server = m.RangeServerInfo(1, "127.0.0.1:10911")
    part = m.RangeInfo(3, 1, 0, 0, -1, [server], 1, 1)
    stream = m.StreamInfo(3, 1, 1, 1000)
    entries = [pack_entry(3, 0, 1, 7, 2, 1_700_000_000_000, b"payload"), pack_entry(4, 0, 0, 0, 1, 0, b"")]
    return [
        m.PingRequest(b"", b"ping"),
        m.HeartbeatRequest("client", m.ClientRole.RANGE_SERVER, server),
        m.AllocateIdRequest(100, "host"),
        m.AppendRequest(100, entries),
        m.AppendRequest(100, entries[:1]),
        m.FetchRequest(part, 5, -1, 10, 1, 1000),
        m.ListRangeRequest(100, 1, 3),
        m.SealRangeRequest(part),
        m.CreateRangeRequest(part),
        m.CreateStreamRequest(stream),
        m.DeleteStreamRequest(3),
        m.UpdateStreamRequest(stream),
        m.DescribeStreamRequest(3),
        m.TrimStreamRequest(3, 9),
        m.ReportMetricsRequest(server, m.RangeServerMetrics(disk_free_space=1)),
        m.DescribePdRequest(server, 100),
    ]


def seeds() -> dict[str, bytes]:
    """Inputs by file name: every request as the default dialect writes it, offered to each dialect."""
    writer = DialectV02()
    found = {}
    for number, request in enumerate(requests()):
        opcode, header, payload = writer.encode_request(request)
        frame = b"".join(encode_frame(opcode, 0, 1, header, payload))
        for index, dialect in enumerate(SPEAKERS):
            found[f"{number:02d}-{type(request).__name__}-{dialect.name}"] = bytes([index]) + frame
    return found


if __name__ == "__main__":
    run(one_input, seeds, ("sbp_back.wire.", "sbp_back.transport.", "sbp_document."))
