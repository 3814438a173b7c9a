"""Topics that a migration fills: who may change them, over restarts, and the one step that hands them over."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import WHOLE
from bridges.catalog.topics.topic import ChangeKind, TopicNotFound
from bridges.errors import ImportFenced, TopicImporting
from tests.bridges.catalog.test_catalog import Home


@pytest.fixture
async def home(tmp_path: Path):
    home = Home(tmp_path)
    await home.start()
    yield home
    await home.stop()


async def test_a_topic_that_is_imported_belongs_to_its_migration_over_restarts(home: Home) -> None:
    topic = await home.catalog.create_topic("a", 2, {SPLIT: "true"}, migration="m")
    assert topic.import_epoch == 0
    catalog = await home.restart()
    topic = catalog.topic("a")
    assert topic.imported is not None
    assert (topic.imported.migration, topic.import_epoch, topic.imported.is_running) == ("m", 0, True)
    with pytest.raises(TopicImporting, match="migration 'm'"):
        await catalog.delete_topic("a")
    with pytest.raises(TopicImporting):
        await catalog.add_partitions("a", 3)
    with pytest.raises(TopicImporting):
        await catalog.change_partitions("a", [0], [WHOLE])
    with pytest.raises(ImportFenced):
        await catalog.add_partitions("a", 3, "another")
    with pytest.raises(ImportFenced):
        await catalog.delete_topic("a", "another")
    assert len((await catalog.add_partitions("a", 3, "m")).partitions) == 3
    await catalog.delete_topic("a", "m")
    with pytest.raises(TopicNotFound):
        catalog.topic("a")
    # Nothing of the import is left for a topic of the same name.
    made = await catalog.create_topic("a", 1)
    assert made.imported is None
    assert (await home.restart()).topic("a").import_epoch == -1


async def test_each_run_takes_the_next_epoch(home: Home) -> None:
    await home.catalog.create_topic("a", 1, migration="m")
    assert (await home.catalog.take_import("a", "m")).import_epoch == 1
    catalog = await home.restart()
    assert (await catalog.take_import("a", "m")).import_epoch == 2
    assert [change.kind for change in home.changes] == [ChangeKind.IMPORT]
    assert (catalog.import_epoch("a", 0), catalog.import_epoch("none", 0)) == (2, -1)
    with pytest.raises(ImportFenced):
        await catalog.take_import("a", "another")
    await catalog.create_topic("b", 1)
    with pytest.raises(ImportFenced):
        await catalog.take_import("b", "m")


async def test_topics_are_handed_over_all_or_none(home: Home) -> None:
    for name in ("a", "b", "c"):
        await home.catalog.create_topic(name, 1, migration="m")
    await home.catalog.create_topic("d", 1, migration="another")
    with pytest.raises(ImportFenced, match="'d'"):
        await home.catalog.hand_over(["a", "d"], "m", {"a": 0, "d": 0})
    await home.catalog.take_import("b", "m")
    with pytest.raises(ImportFenced, match="another run"):
        await home.catalog.hand_over(["a", "b"], "m", {"a": 0, "b": 0})
    assert [home.catalog.topic(name).import_epoch for name in "ab"] == [0, 1]
    await home.catalog.hand_over(["a", "b"], "m", {"a": 0, "b": 1})
    catalog = await home.restart()
    assert [catalog.topic(name).import_epoch for name in "abcd"] == [-1, -1, 0, 0]
    # Again makes no difference to those that were, and hands over the others.
    before = catalog.topic("a").imported
    await catalog.hand_over(["a", "c"], "m", {"c": 0})
    assert catalog.topic("a").imported == before
    assert catalog.topic("c").import_epoch == -1
    with pytest.raises(ImportFenced):
        await catalog.take_import("a", "m")
    await catalog.delete_topic("a")


async def test_a_topic_without_an_import_has_none_to_end(home: Home) -> None:
    await home.catalog.create_topic("a", 1)
    with pytest.raises(ImportFenced):
        await home.catalog.hand_over(["a"], "m", {"a": 0})
    with pytest.raises(TopicNotFound):
        await home.catalog.hand_over(["nothing"], "m", {})
