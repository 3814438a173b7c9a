"""Checks of the object storage: that it answers, lets a node write and delete, and keeps two writers apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

from anabranch_kit.errors import StoreError
from bridges.node.finding import Finding, fine, warning, wrong
from bridges.node.settings.config import Settings
from sbp_back.range_server.object_log.objects.bucket import Bucket

_ABOUT = "object storage"


def check(settings: Settings, clock: Callable[[], float] = time.perf_counter) -> Iterator[Finding]:
    """Check that the settings fit the cluster, and try the storage with an object that is deleted again."""
    url = settings.sbp.objects
    if settings.cluster.database and settings.sbp.durability != "object":
        yield warning(
            _ABOUT,
            "the nodes of this cluster keep data on their own disks: when one is gone, nobody else has its data",
            "sbp.durability=object and sbp.objects",
        )
    if not url or url.startswith("file://"):
        return
    key = f"doctor-{uuid4().hex}"
    try:
        bucket = Bucket(url)
        begun = clock()
        bucket.put_if_absent(key, b"a trial")
        took = clock() - begun
        held_apart = not bucket.put_if_absent(key, b"another")
        bucket.delete([key])
    except (StoreError, OSError) as error:
        remedy = "see sbp.objects, AWS_ENDPOINT_URL and the credentials; the node must list, read, write and delete"
        yield wrong(_ABOUT, f"{url} cannot be used: {error}", remedy)
        return
    if held_apart:
        yield fine(_ABOUT, f"{url} takes an object in {took * 1000:.0f} ms")
    else:
        yield wrong(
            _ABOUT,
            f"{url} overwrites an object that a put with If-None-Match: * should leave alone: two owners of a log "
            "could both write",
            "use a store with conditional puts",
        )
