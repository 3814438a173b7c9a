"""The JSON interface as an OpenAPI document, built from the routes of all handlers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from bridges.console.handlers import Route

_ERROR = "#/components/schemas/Error"
_LINES = "application/x-ndjson"


def document(version: str, routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document for a node of that version."""
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
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


def _described(one: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", one.path)
    ]
    for query in one.queries:
        asked = _schema(query)["properties"]
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in asked.items()]
    failure = {"description": "why not", "content": {"application/json": {"schema": {"$ref": _ERROR}}}}
    described: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method.lower()}{re.sub('[^a-z]+', '_', one.path)}".rstrip("_"),
        "responses": {str(one.status): {"description": "done", "content": {one.content: {}}}, "default": failure},
    }
    if parameters:
        described["parameters"] = parameters
    if one.body is not None:
        schema = _schema(one.body) | {"additionalProperties": False}
        content = {"application/json": {"schema": schema}}
        described["requestBody"] = {"required": bool(schema["required"]), "content": content}
    elif one.lines and one.method == "POST":
        described["requestBody"] = {"required": True, "content": {_LINES: {}}}
    return described


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(msgspec.json.encode(msgspec.json.schema(kind)["$defs"][kind.__name__]))
    return schema
