"""One thin pass through the fronts of a node whose backend speaks the document's dialect alone.

Clients meet the front, which is the same whatever keeps the data: their suites run on the embedded backend.
"""

from __future__ import annotations

import pytest

from tests.conftest import NodeFactory
from tests.test_three_protocols import LISTENERS, write_and_read_with_each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_what_each_protocol_wrote_is_read_by_all(node_factory: NodeFactory) -> None:
    write_and_read_with_each(node_factory.on("document", listen=LISTENERS), "flights")
