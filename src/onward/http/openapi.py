"""The OpenAPI 3.1 document, generated from the endpoints and msgspec's JSON schemas (A4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final

import msgspec

from onward.http.bodies import NDJSON
from onward.http.endpoints import JSON, Endpoint
from onward.http.problems import MEDIA_TYPE, STATUSES, Problem

_PARAMETER: Final = re.compile(r"\{([a-z_]+)\}")
_REF: Final = "#/components/schemas/{name}"
_NAMES: Final = "Tilde-encoded: ~2f for '/'."


def document_text(endpoints: Sequence[Endpoint], prefix: str, *, root_path: str = "") -> str:
    """Write the document of some endpoints."""
    return _document_text(tuple(endpoints), prefix, root_path)


@lru_cache(maxsize=8)
def _document_text(endpoints: tuple[Endpoint, ...], prefix: str, root_path: str) -> str:
    return msgspec.json.encode(document(endpoints, prefix, root_path=root_path), order="deterministic").decode()


def document(endpoints: Sequence[Endpoint], prefix: str, *, root_path: str = "") -> dict[str, Any]:
    """Make the document."""
    types: list[Any] = [Problem]
    for one in endpoints:
        types += [kind for kind in (one.query, one.body, one.returns) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    bodies = [by_type[id(one.body)] for one in endpoints if one.body is not None]
    for name in _reachable(bodies, components):
        _leave_out_defaults(components[name])
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(prefix + one.path, {})[one.method.lower()] = _operation(one, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Onward", "version": version("onward"), "description": "A durable job queue."},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "onward_session"},
            },
        },
    }


def _reachable(schemas: Sequence[Any], components: dict[str, Any]) -> set[str]:
    """Find the components that some schemas refer to."""
    found: set[str] = set()
    waiting = list(schemas)
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(components[name])
            waiting += one.values()
    return found


def _leave_out_defaults(schema: dict[str, Any]) -> None:
    """Make a field of a request that need not be sent optional for generators, which take a default for a promise."""
    for each in schema.get("properties", {}).values():
        each.pop("default", None)


def _operation(one: Endpoint, by_type: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": one.operation_id,
        "summary": one.operation.summary,
        "tags": [one.operation.name.partition(".")[0]],
        "security": _security(one),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "description": _NAMES,
                 "schema": {"type": "string", "pattern": "^([A-Za-z0-9_.-]|~[0-9a-fA-F]{2})+$"}}
                for name in _PARAMETER.findall(one.path)
            ),
            *_query(one, components),
        ],
        "responses": _responses(one, by_type),
    }  # fmt: skip
    if one.operation.name == "jobs.enqueue":
        operation["parameters"].append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}, "required": False}
        )
    if one.body is not None:
        schema = by_type[id(one.body)]
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if one.is_bulk:
            content |= {name: {"schema": {"type": "string"}} for name in sorted(NDJSON)[:1]}
        operation["requestBody"] = {"required": not one.optional_body, "content": content}
    return operation


def _security(one: Endpoint) -> list[dict[str, list[str]]]:
    if one.operation.name == "session.create":
        return []
    return [{"token": []}] if one.bearer_only else [{"token": []}, {"session": []}]


def _query(one: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    schema = components[one.query.__name__]
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is given or not: it is never null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in {"anyOf", "default"}}
    if len(options) == 1:
        return {**rest, **options[0]}
    return {**rest, "anyOf": options} if options else rest


def _responses(one: Endpoint, by_type: dict[int, Any]) -> dict[str, Any]:
    if one.returns is None:
        responses: dict[str, Any] = {"204": {"description": "Done."}}
    else:
        content = {name: {"schema": by_type[id(one.returns)]} for name in one.media_types}
        responses = {str(one.status): {"description": one.operation.summary, "content": content}}
        if one.status in {201, 202} and one.operation.name != "session.create":
            responses["200"] = {"description": one.operation.summary, "content": content}
        if one.operation.name == "health.read":
            responses["503"] = {"description": STATUSES[503], "content": content}
    problem = {"schema": {"$ref": _REF.format(name="Problem")}}
    for status, description in STATUSES.items():
        if status in {405, 500}:
            continue
        known = responses.setdefault(str(status), {"description": description, "content": {}})
        known["content"] = {**known.get("content", {}), MEDIA_TYPE: problem}
    return responses
