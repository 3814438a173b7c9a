"""The matrix sees what it is there for: each kind of damage, planted in a node, turns its cells red.

Writers and readers are those that need nothing but Python, so that this runs wherever the tests do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TEST_SETTINGS
from tests.matrix.conftest import LISTEN, Clients, differences, write_all
from tests.matrix.damage import DAMAGES, DamagedNode
from tests.matrix.kinds import KINDS

pytestmark = [pytest.mark.slow]

CELLS = (("confluent-kafka", "ydb-grpc"), ("ydb-grpc", "confluent-kafka"), ("ydb-grpc", "tail"))


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
