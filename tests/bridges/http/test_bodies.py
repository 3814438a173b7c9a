"""Queries of requests as structs."""

from __future__ import annotations

from typing import Annotated

from aiohttp.test_utils import make_mocked_request
from msgspec import Meta, Struct

from bridges.http.bodies import read_query


class Query(Struct):
    follow: bool = False
    history: Annotated[bool, Meta(description="whether")] = False
    missing: bool = False
    limit: int = 0


def test_a_flag_of_a_query_is_set_by_its_name_alone() -> None:
    request = make_mocked_request("GET", "/?follow&history=Yes&limit=3&unknown=1")
    assert read_query(request, Query) == Query(follow=True, history=True, limit=3)
    assert read_query(make_mocked_request("GET", "/?follow=no"), Query) == Query()
