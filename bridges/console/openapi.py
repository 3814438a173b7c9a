"""The JSON interface as an OpenAPI document, built from one table that a test compares with the routes."""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import web
from msgspec import Struct

from bridges.http.memory import send_parts

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_OBJECT: dict[str, Any] = {"type": "object"}
_LIST: dict[str, Any] = {"type": "array", "items": {}}
_SPAN: dict[str, Any] = {"type": "string", "enum": ["hour", "day"], "default": "hour"}

_PAGE = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 500, "description": "A page of so many; all without it."},
    "skip": {"type": "integer", "minimum": 0, "description": "Rows before the page; see next of the answer."},
    "search": {"type": "string", "description": "What names have in them, whatever its case."},
    "descending": _FLAG,
}


def _sorted_by(*names: str) -> dict[str, Any]:
    return {**_PAGE, "sort": {"type": "string", "enum": ["name", *names]}}


class Operation(Struct, frozen=True):
    """One kind of request.

    ``query`` and ``body`` are schemas by name; ``needed`` are required names of the body. ``lines``: the body, or the
    answer, has one record per line.
    """

    method: str
    path: str
    summary: str
    query: dict[str, dict[str, Any]] = {}
    body: dict[str, dict[str, Any]] | None = None
    needed: tuple[str, ...] = ()
    status: int = 200
    lines: bool = False
    kind: str = "application/json"


_TOPIC = "/api/topics/{topic}"
_PARTITION = _TOPIC + "/partitions/{partition}"
_RULE = dict.fromkeys(("resource", "pattern", "name", "principal", "host", "operation"), _TEXT) | {"allow": _FLAG}
_ENTITY = {"entity": {"type": "object", "description": "user, client-id, both, or ip; null is the default"}}
_SLOTS = {
    "slots": {"type": "array", "items": _NUMBER},
    "topic": _TEXT,
    "partitions": {"type": "array", "items": _NUMBER},
    "group": _TEXT,
    "space": _TEXT,
}

OPERATIONS = (
    Operation("GET", "/healthz", "Whether the process can do its work"),
    Operation("GET", "/readyz", "Whether the node takes clients"),
    Operation(
        "GET",
        "/metrics",
        "Metrics for Prometheus; of the first of several workers those of all",
        {"alone": {"type": "string", "description": "Those of the worker that is asked only."}},
        kind="text/plain",
    ),
    Operation("GET", "/api/openapi.json", "This document"),
    Operation("GET", "/api/me", "Who asks, and what it may do with the node"),
    Operation("GET", "/api/status", "Version, addresses, and what each protocol has done"),
    Operation("GET", "/api/promises", "What is not promised as the node is set up"),
    Operation("GET", "/api/history", "What went through the node lately", {"span": _SPAN}),
    Operation("GET", "/api/users", "Names of users", _sorted_by()),
    Operation(
        "GET",
        "/api/topics",
        "Topics, by name; or a page of them",
        {
            **_sorted_by(
                "partitions", "created", "records", "bytes", "records_in", "bytes_in", "records_out", "bytes_out"
            ),
            "history": {"type": "boolean", "description": "Of a page: with what went in and out in the last hour."},
        },
    ),
    Operation(
        "POST",
        "/api/topics",
        "Make a topic",
        body={
            "name": _TEXT,
            "partitions": _NUMBER,
            "config": _OBJECT,
            "names": {"type": "object", "description": "what protocols call it, by protocol"},
            "validate_only": _FLAG,
        },
        needed=("name",),
        status=201,
    ),
    Operation("GET", _TOPIC, "One topic and its partitions, or a page of these", _sorted_by()),
    Operation("PATCH", _TOPIC, "More partitions, other configuration", body={"partitions": _NUMBER, "config": _OBJECT}),
    Operation("DELETE", _TOPIC, "Delete a topic"),
    Operation(
        "GET", _TOPIC + "/history", "What went in and out through each protocol, and who fell behind", {"span": _SPAN}
    ),
    Operation("GET", _TOPIC + "/groups", "Groups that read it, with their lag in it", _sorted_by("lag", "seconds")),
    Operation(
        "GET",
        _TOPIC + "/records",
        "Records, a line each",
        {
            "partition": _NUMBER,
            "offset": {"type": "string", "description": "a number, earliest or latest"},
            "since_ms": {"type": "integer", "description": "instead of offset: a time"},
            "until_ms": _NUMBER,
            "limit": _NUMBER,
            "follow": _FLAG,
            "text": {"type": "string", "description": "in key, value or a header"},
            "key": _TEXT,
            "header": {"type": "string", "description": "NAME, or NAME=TEXT"},
            "look": {"type": "integer", "description": "most records that a search looks at", "default": 100_000},
            "order": {
                "type": "string",
                "enum": ["newest", "oldest"],
                "description": "Partitions are merged by time, in windows, oldest first within one.",
            },
            "at": {"type": "string", "description": "partitions, and where to begin in each: 0:17,2:5"},
        },
        lines=True,
        kind="application/x-ndjson",
    ),
    Operation("POST", _TOPIC + "/records", "Append records, a line each", lines=True),
    Operation(
        "GET", _PARTITION + "/records/{offset}", "One record as stored, and as the readers of each protocol get it"
    ),
    Operation(
        "POST",
        _PARTITION + "/skip",
        "Have readers pass over a batch that cannot be read",
        body={"offset": _NUMBER, "force": _FLAG},
        needed=("offset",),
    ),
    Operation("GET", _PARTITION + "/transactions", "Open transactions of a partition"),
    Operation(
        "POST",
        _PARTITION + "/transactions/{producer}/end",
        "End an open transaction of a producer",
        body={"commit": _FLAG},
        needed=("commit",),
    ),
    Operation("GET", "/api/groups", "Groups, by name; or a page of them", _sorted_by("members", "lag", "seconds")),
    Operation("GET", "/api/groups/{group}", "One group; or a page of its positions", {**_sorted_by(), "space": _TEXT}),
    Operation("GET", "/api/groups/{group}/history", "Its lag lately", {"space": _TEXT, "span": _SPAN}),
    Operation(
        "POST",
        "/api/groups/{group}/reset",
        "Set positions of a group without members, or show what that would do",
        body={
            "topic": _TEXT,
            "partitions": {"type": "array", "items": _NUMBER},
            "to": {"type": "string", "enum": ["earliest", "latest", "offset", "time"]},
            "offset": _NUMBER,
            "time_ms": _NUMBER,
            "space": _TEXT,
            "dry_run": _FLAG,
        },
        needed=("topic", "to"),
    ),
    Operation("GET", "/api/transactions", "Transactional ids", {**_sorted_by(), "open": _FLAG}),
    Operation(
        "GET",
        "/api/open-transactions",
        "Open transactions of all partitions in use, those that hold back most first",
        {**_sorted_by(), "hanging": {"type": "boolean", "description": "only those that nobody coordinates"}},
    ),
    Operation(
        "GET",
        "/api/transactions/{transaction}",
        "One of them, and what its open transaction has written to",
        _sorted_by(),
    ),
    Operation("POST", "/api/transactions/{transaction}/abort", "Abort what is open of it"),
    Operation(
        "POST",
        "/api/transactions/forget",
        "Forget transactional ids of which nothing is open",
        body={"name": _TEXT, "prefix": _FLAG, "idle_ms": _NUMBER},
        needed=("name",),
    ),
    Operation("GET", "/api/jobs", "Jobs of the data pipeline that have told of themselves", _sorted_by()),
    Operation("GET", "/api/cluster", "Nodes of the cluster", _sorted_by()),
    Operation("POST", "/api/cluster/nodes/{node}/drain", "Have a node hand over all it owns"),
    Operation("POST", "/api/cluster/nodes/{node}/undrain", "Have a drained node own its share again"),
    Operation(
        "POST", "/api/cluster/move", "Pin slots to a node", body={"node_id": _NUMBER, **_SLOTS}, needed=("node_id",)
    ),
    Operation(
        "POST",
        "/api/cluster/unpin",
        "Let balance decide again whose slots are",
        body={"node_id": _NUMBER, **_SLOTS, "all": _FLAG},
    ),
    Operation("GET", "/api/acls", "Rules of who may do what", {**_RULE, "about": _TEXT, **_sorted_by()}),
    Operation(
        "POST", "/api/acls", "Add a rule", body=_RULE, needed=("resource", "name", "principal", "operation"), status=201
    ),
    Operation("POST", "/api/acls/remove", "Remove the rules that agree with all of this", body=_RULE),
    Operation("GET", "/api/quotas", "Quotas", _sorted_by()),
    Operation("POST", "/api/quotas", "Set quotas", body={**_ENTITY, "values": _OBJECT}, needed=("entity", "values")),
    Operation("POST", "/api/quotas/remove", "Remove quotas", body={**_ENTITY, "keys": _LIST}, needed=("entity",)),
)


def document(version: str) -> dict[str, Any]:
    """Return the OpenAPI document for a node of that version."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Anabranch", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "kind"],
                    "properties": {"error": {"type": "string"}, "kind": {"type": "string"}},
                }
            },
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{}, {"basic": []}],
    }


def _described(one: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", one.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in one.query.items()]
    failure = {"description": "why not", "content": {"application/json": {"schema": {"$ref": _ERROR}}}}
    told: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method.lower()}{re.sub('[^a-z]+', '_', one.path)}".rstrip("_"),
        "responses": {str(one.status): {"description": "done", "content": {one.kind: {}}}, "default": failure},
    }
    if parameters:
        told["parameters"] = parameters
    if one.body is not None:
        schema = {"type": "object", "properties": one.body, "required": list(one.needed), "additionalProperties": False}
        told["requestBody"] = {"required": bool(one.needed), "content": {"application/json": {"schema": schema}}}
    elif one.lines and one.method == "POST":
        told["requestBody"] = {"required": True, "content": {"application/x-ndjson": {}}}
    return told


_ERROR = "#/components/schemas/Error"


class OpenApiHandlers:
    """Handler of ``/api/openapi.json``."""

    def __init__(self, version: str) -> None:
        self._document = json.dumps(document(version)).encode()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/openapi.json", self.serve_description)

    async def serve_description(self, request: web.Request) -> web.StreamResponse:
        """Return the document."""
        return await send_parts(request, [self._document], "application/json")
