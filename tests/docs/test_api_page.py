"""The API's reference page says what the route table says, and its examples are what a coordinator takes."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from docs.api_page import PAGE, brought_up_to_date
from pliant.client import client
from pliant.core.messages import Command
from pliant.core.submissions import Submission
from pliant.wire import api
from pliant.wire.codec import Body
from pliant.wire.openapi import document
from pliant.wire.routes import COMMANDS, ROUTES


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == brought_up_to_date(page), "run: make docs-api"


@pytest.mark.parametrize(("name", "text"), re.findall(r"```json (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_an_example_is_what_it_says_it_is(name: str, text: str) -> None:
    ours = (*get_args(Command), Submission, api.TokenRequest, api.Problem, api.Done)
    kinds: dict[str, type[object]] = {kind.__name__: kind for kind in ours}
    assert Body(kinds[name]).decode(text.encode())


def test_every_command_a_client_may_send_has_a_route_and_the_coordinators_own_have_none() -> None:
    without = {kind.__name__ for kind in get_args(Command)} - {kind.__name__ for kind in COMMANDS}
    own = {
        "Expire",
        "AgentExpire",
        "AgentSuspect",
        "Suspect",
        "WaitOver",
        "GrantWorkers",
        "SetPrice",
        "Advise",
        "ShardOverdue",
    }
    assert without == own


def test_every_route_has_its_place_in_the_description() -> None:
    described = document()
    found = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    assert found == {(route.path, route.method) for route in ROUTES}
    names = [route.name for route in ROUTES]
    assert len(names) == len(set(names))


def test_the_description_is_json_and_every_reference_in_it_leads_somewhere() -> None:
    described = json.loads(json.dumps(document()))
    for reference in _references(described):
        assert reference.removeprefix("#/components/schemas/") in described["components"]["schemas"]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in _references(each)]
    if isinstance(value, list):
        return [found for each in value for found in _references(each)]
    return []


def test_the_client_can_call_every_route() -> None:
    """By name: what the table offers and no method of the client mentions would be dead weight."""
    text = Path(client.__file__).read_text()
    names = {route.name.upper().replace("-", "_") for route in ROUTES} - {
        route.name.upper().replace("-", "_") for route in COMMANDS.values()
    }
    for_probes = {"READY"}
    assert {name for name in names if f"routes.{name}" not in text} == for_probes
