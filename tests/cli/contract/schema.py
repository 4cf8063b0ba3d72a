"""The part of JSON Schema that docs/schema uses, as a check of one document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_KNOWN = {
    "$schema", "title", "description", "type", "const", "pattern", "properties", "required", "additionalProperties",
    "items",
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Everything in which a document differs from its schema."""
    unknown = set(schema) - _KNOWN
    assert not unknown, f"{where}: the check does not know {unknown}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{where}: {value!r} is not {kinds}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match"
    if isinstance(value, dict):
        yield from _members(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        for at, each in enumerate(value):
            yield from problems(each, schema["items"], f"{where}[{at}]")


def _members(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    known = schema.get("properties", {})
    for name, each in value.items():
        if name in known:
            yield from problems(each, known[name], f"{where}.{name}")
        elif schema.get("additionalProperties", False):
            yield from problems(each, schema["additionalProperties"], f"{where}.{name}")
        elif known or schema.get("additionalProperties") is False:
            yield f"{where}.{name} is not in the schema"


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])
