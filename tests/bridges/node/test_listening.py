"""Which listeners a node opens, and which it cannot be without."""

from __future__ import annotations

import pytest

from bridges.node.listening import Listening
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError

SEVERAL = ({"cluster.database": "postgresql://db/anabranch"}, {"node.workers": "2"})
READ_AT = "sbp-range-server"


def opened(flags: dict[str, str]) -> set[str]:
    return set(Listening(load(flags, environ={}, fronts=()).settings, ()).addresses())


@pytest.mark.parametrize("several", SEVERAL)
def test_nodes_of_a_cluster_read_each_others_partitions_at_a_listener(several: dict[str, str]) -> None:
    assert opened(several) >= {READ_AT, "cluster"}
    for closing in ({f"listen.{READ_AT}": "off"}, {"auth.required": "true"}):
        with pytest.raises(SettingsError, match=f"each other's partitions at listener {READ_AT}.*give listen"):
            opened(several | closing)
    for opening in ({"sbp.tickets": "true"}, {f"listen.{READ_AT}": "127.0.0.1:0"}):
        assert READ_AT in opened(several | {"auth.required": "true"} | opening)


def test_whoever_has_nobody_beside_him_needs_none() -> None:
    assert READ_AT not in opened({f"listen.{READ_AT}": "off"})
    elsewhere = {"sbp.mode": "external", "sbp.pd": "127.0.0.1:12378", "cluster.database": "postgresql://db/anabranch"}
    assert READ_AT not in opened(elsewhere)
