"""The protocol as a document that can be kept: routes, bodies, answers and events, with their fields and types.

`python -m compat.frozen` in `tests` writes `protocol-VERSION.json`. Do that before a release, and whenever a field was
added that no release has yet.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from pliant.core.messages import Event
from pliant.wire.openapi import document
from pliant.wire.protocol import VERSION

FOLDER = Path(__file__).parent
Described = dict[str, Any]


def protocol() -> Described:
    """Return the protocol of the code."""
    whole = document()
    events, components = msgspec.json.schema_components(get_args(Event), ref_template="#/components/schemas/{name}")
    names = sorted(each["$ref"].rpartition("/")[2] for each in events)
    operations = {
        operation["operationId"]: {
            "method": method,
            "path": path,
            "scope": operation["x-pliant-scope"],
            "query": [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"],
            "body": _name(operation.get("requestBody", {}).get("content", {})),
            "answer": _name(operation["responses"]["200"]["content"]),
        }
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
    }
    types = {name: _plain(schema) for name, schema in {**whole["components"]["schemas"], **components}.items()}
    found: Described = {"version": VERSION, "operations": operations, "events": names, "types": types}
    return dict(json.loads(json.dumps(found)))  # as it is read back, with lists for tuples


def read(version: int) -> Described:
    """Return a kept protocol."""
    found: Described = json.loads(path(version).read_text())
    return found


def path(version: int) -> Path:
    return FOLDER / f"protocol-{version}.json"


def breaks(old: Described, new: Described) -> list[str]:
    """Return what a peer of the old protocol would not understand or not be understood in; empty if nothing."""
    found = []
    for name, operation in old["operations"].items():
        now = new["operations"].get(name)
        if now is None or any(now[key] != operation[key] for key in ("method", "path", "scope", "body", "answer")):
            found.append(f"the request {name} is not as it was")
        elif not {*operation["query"]} <= {*now["query"]}:
            found.append(f"the request {name} lost a parameter")
    found += [f"the event {name} is gone" for name in old["events"] if name not in new["events"]]
    for name, schema in old["types"].items():
        found += _type_breaks(name, schema, new["types"].get(name))
    return found


def _type_breaks(name: str, old: Described, new: Described | None) -> list[str]:
    if new is None:
        return [f"the type {name} is gone"]
    if "enum" in old or "enum" in new:
        return [] if old.get("enum") == new.get("enum") else [f"the values of {name} changed"]
    found = []
    for key, kind in old.get("properties", {}).items():
        if key not in new.get("properties", {}):
            found.append(f"{name}.{key} is gone")
        elif new["properties"][key] != kind:
            found.append(f"{name}.{key} has another type or default")
    found += [f"{name}.{key} is required now" for key in new.get("required", ()) if key not in old.get("required", ())]
    return found


def _name(content: Described) -> str | None:
    schema = content.get("application/json", {}).get("schema", {})
    return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else None


def _plain(schema: Any) -> Any:
    """Leave out what is for people."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in sorted(schema.items()) if key not in ("description", "title")}
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    path(VERSION).write_text(json.dumps(protocol(), indent=1, sort_keys=True) + "\n")
