"""Coverage-guided fuzzing of the Kafka request reader. Needs atheris, which is not part of the set-up:

    python -m pip install atheris
    python tests/fuzz/fuzz_kafka_wire.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_kafka_wire.py --seeds CORPUS_DIRECTORY`` writes one request of every API and version served.
"""

from __future__ import annotations

from kafka_front.wire import codec
from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS
from kafka_front.wire.primitives import WireError
from tests.fuzz.harness import run


def one_input(data: bytes) -> None:
    """A frame either decodes or raises WireError; what decodes must encode to something that decodes alike."""
    try:
        header, message = codec.decode_request(data)
    except WireError:
        return
    frame = b"".join(codec.encode_request(header.version, header.correlation_id, header.client_id, message))
    again, same = codec.decode_request(frame[4:])
    # Compared as bytes: a quota may be NaN, which equals nothing.
    assert b"".join(codec.encode_request(again.version, again.correlation_id, again.client_id, same)) == frame
    assert (again.key, again.version, again.client_id) == (header.key, header.version, header.client_id)


def seeds() -> dict[str, bytes]:
    """A request of every API and version whose layout is known, by file name."""
    found = {}
    for api in APIS.values():
        message = getattr(m, api.name + "Request")()
        _fill(message, type(message))
        for version in range(api.first, api.last + 1):
            frame = b"".join(codec.encode_request(version, 7, "fuzz", message))[4:]
            found[f"{api.name}-{version}"] = frame
    return found


def _fill(message: object, root: type) -> None:
    """Give every array of structures one element, so that the seeds reach nested fields."""
    for name in message.__slots__:  # type: ignore[attr-defined]
        hint = _element(type(message), name, root)
        if hint is not None:
            inner = hint()
            _fill(inner, root)
            setattr(message, name, [inner])


def _element(owner: type, name: str, root: type) -> type | None:
    annotation = vars(owner)["__init__"].__annotations__[name]
    if not annotation.startswith(f"list[{root.__name__}."):
        return None
    return getattr(root, annotation.removeprefix(f"list[{root.__name__}.").split("]")[0])  # type: ignore[no-any-return]


if __name__ == "__main__":
    run(one_input, seeds, ("kafka_front.wire.",))
