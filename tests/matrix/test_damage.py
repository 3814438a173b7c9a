"""The matrix sees what it is there for: each kind of damage, planted in a node, turns its cells red, of records and of
events.

Writers and readers are those that need nothing but Python, so that this runs wherever the tests do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TEST_SETTINGS
from tests.matrix import world
from tests.matrix.conftest import LISTEN, Clients, differences, write_all
from tests.matrix.damage import DAMAGES, MISHAPS, DamagedNode
from tests.matrix.kinds import KINDS
from tests.matrix.world import SETTINGS, OneWriter

pytestmark = [pytest.mark.slow, pytest.mark.long]

CELLS = (
    *(("confluent-kafka", "ydb-grpc"), ("ydb-grpc", "confluent-kafka")),
    *(("pravega-wheel", "confluent-kafka"), ("ydb-grpc", "tail")),
)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_turns_cells_red(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    damage = DAMAGES[name]
    kinds = [kind for kind in KINDS if kind.name in (*damage.red, "header of no bytes", "created in 2100")]
    node = DamagedNode(tmp_path / "data", name, settings=TEST_SETTINGS, listen=LISTEN)
    with node.lent():
        clients = Clients(node, request)
        try:
            found: list[str] = []
            written = {writer: write_all(node, clients.writer(writer), writer, kinds) for writer in dict(CELLS)}
            for writer, reader in CELLS if damage.ends else CELLS[-1:]:
                found += differences(clients.writer(writer), clients.reader(reader), written[writer])[0]
        finally:
            clients.close()
    for kind in damage.red:
        assert any(line.startswith(f"{kind}:") for line in found), f"{kind} is green: {found}"


@pytest.mark.parametrize("name", MISHAPS)
def test_a_mishap_turns_its_event_red(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mishap = MISHAPS[name]
    node = DamagedNode(tmp_path / "data", name, settings=SETTINGS, listen=LISTEN)
    with node.lent():
        clients = Clients(node, request)
        try:
            one = OneWriter(node, "mishap", clients.writer(mishap.writer))
            one.write(0)
            one.check = lambda: None  # type: ignore[method-assign]
            getattr(world, mishap.event)(one)
            found = list(one.differences(clients.reader(mishap.reader)))
        finally:
            clients.close()
    assert found, "it is green"
