"""The OpenAPI document against the routes that there are, and against what they take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridges.console.api import ROUTES, Console
from bridges.console.openapi import document
from bridges.node.assembly import Node
from tests.bridges.node.test_node import settings_of

ROOT = Path(__file__).parents[3]


async def test_every_route_is_described_and_nothing_else(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    app = Console(node.floors.host, open_health=True).application()
    routes = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {(one.method, one.path) for one in ROUTES} == routes - {("GET", "/"), ("GET", "/static")}
    async with aiohttp.ClientSession(f"http://{node.addresses['console']}") as session:
        async with session.get("/api/openapi.json") as answer:
            told: dict[str, Any] = await answer.json()
        assert told == document(told["info"]["version"], ROUTES)
        for one in ROUTES:
            if one.body is None:
                continue
            path = re.sub(r"{(partition|producer|node)}", "0", re.sub(r"{(topic|group|transaction)}", "none", one.path))
            async with session.request(
                one.method, path, json=dict.fromkeys(one.body.__struct_encode_fields__)
            ) as answer:
                # None of the fields that are described is one that is not known.
                assert "unknown field" not in await answer.text(), one.path
    await node.stop()


def test_the_document_is_one() -> None:
    told = document("1", ROUTES)
    ids = [operation["operationId"] for path in told["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == len(ROUTES)
    for path, operations in told["paths"].items():
        for operation in operations.values():
            names = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert names == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize("script", sorted((ROOT / "bridges/console/static").glob("*.js")), ids=lambda path: path.name)
def test_the_page_asks_for_what_is_described(script: Path) -> None:
    known = {re.sub(r"{\w+}", "X", one.path) for one in ROUTES}
    for asked in re.findall(r'["`](/(?:api|readyz)[^"`]*)["`]', script.read_text("utf-8")):
        path = re.sub(r"\$\{[^}]*\}+", "X", asked).partition("?")[0]
        assert path.rstrip("/") in known or any(one.startswith(path) for one in known), asked
