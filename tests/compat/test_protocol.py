"""Versions that work together: the kept protocols, and real coordinators with older and newer clients."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from compat import frozen
from e2e.examples import JOB, example, furnish
from e2e.running import Running, start
from pliant.client.client import decode_event
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.errors import BadInput, Unreachable
from pliant.wire import api, protocol
from pliant.wire.codec import Body
from pliant.wire.routes import ROUTES

NOW = frozen.protocol()
VERSIONS = range(protocol.OLDEST, protocol.VERSION + 1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("home"), lease_ttl_s=3600.0) as running:
        furnish(running)
        yield running


# --------------------------------------------------------------------------------------------- the kept protocols


@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_older_version_sends_and_expects_is_still_understood(version: int) -> None:
    assert frozen.breaks(frozen.read(version), NOW) == [], (
        "This breaks clients or coordinators of an older version. Keep the old form, or raise OLDEST in "
        "pliant/wire/protocol.py and say so in the changelog."
    )


def change(**edits: Any) -> frozen.Described:
    changed = copy.deepcopy(NOW)
    schema = changed["types"]["Renew"]
    for edit, value in edits.items():
        match edit:
            case "gone":
                del schema["properties"][value]
            case "required":
                schema["required"] = [*schema["required"], value]
            case "typed":
                schema["properties"][value] = {"type": "string", "default": ""}
            case "added":
                schema["properties"][value] = {"type": "string", "default": ""}
            case "value":
                changed["types"]["JobState"]["enum"].append(value)
            case "route":
                del changed["operations"][value]
            case "event":
                changed["events"].remove(value)
            case _:
                raise AssertionError(edit)
    return changed


@pytest.mark.parametrize(
    "edit",
    [
        {"gone": "revision"},
        {"required": "revision"},
        {"typed": "revision"},
        {"value": "paused"},
        {"route": "renew"},
        {"event": "MemberGone"},
    ],
    ids=str,
)
def test_a_change_that_breaks_older_versions_is_found(edit: dict[str, str]) -> None:
    assert frozen.breaks(NOW, change(**edit))


def test_a_new_field_with_a_default_breaks_nothing() -> None:
    assert frozen.breaks(NOW, change(added="colour")) == []


# ------------------------------------------------------------------------------------------- a newer, or older, client


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body is not None], ids=lambda route: route.name)
def test_unknown_fields_are_ignored_from_a_newer_client_and_refused_from_others(route: Any) -> None:
    body: Body[Any] = Body(route.body)
    data = example(route).body
    assert data is not None
    more = json.dumps({**json.loads(data), "added_later": {"x": [1]}}).encode()
    assert body.decode(more, from_newer=True) == body.decode(data)
    with pytest.raises(BadInput, match="no field 'added_later'"):
        body.decode(more)


def post(running: Running, version: str | None, body: dict[str, object]) -> httpx2.Response:
    headers = {"content-type": "application/json"} | ({} if version is None else {api.PROTOCOL_HEADER: version})
    return running.admin.post(f"/v1/jobs/{JOB}/resize", headers=headers, content=json.dumps(body).encode())


def test_a_newer_client_is_served_by_a_coordinator_that_does_not_know_its_fields(running: Running) -> None:
    newer = {"target": {"size": 3, "placement": [], "reason": "x"}, "urgent": True}
    assert post(running, str(protocol.VERSION + 1), newer).status_code == 200
    for version in (None, api.PROTOCOL):
        refused = post(running, version, newer)
        assert (refused.status_code, refused.json()["code"]) == (422, "bad")


def test_fields_that_are_given_twice_are_refused_from_a_newer_client_too() -> None:
    body = Body(api.Renew)
    with pytest.raises(BadInput, match="given twice"):
        body.decode(b'{"member":"m1","x":1,"x":2}', from_newer=True)


@pytest.mark.parametrize(("version", "status"), [("0", 426), ("x", 400), ("-1", 400), ("9" * 7, 400), ("999999", 200)])
def test_a_client_that_is_too_old_or_no_version_is_refused_before_anything_else(
    running: Running, version: str, status: int
) -> None:
    answer = post(running, version, {"target": {"size": 3}})
    assert answer.status_code == status
    if status == 426:
        assert "upgrade Pliant on the client's machine" in answer.json()["why"]


def test_a_client_that_is_too_old_is_told_to_upgrade(tmp_path: Path) -> None:
    with start(home=tmp_path, protocol_oldest=protocol.VERSION + 1) as newer:
        with pytest.raises(Unreachable, match="refuses 1, that of this Pliant: upgrade Pliant on this machine"):
            newer.client(patience_s=0.5).jobs()
        assert "Traceback" not in newer.log


def test_a_client_that_is_too_new_says_which_side_to_upgrade(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "OLDEST", protocol.VERSION + 1)
    with pytest.raises(Unreachable, match="needs 2 or newer: upgrade Pliant on the coordinator's machine"):
        running.client(patience_s=0.5).jobs()


# ---------------------------------------------------------------------------------------------- a newer coordinator


def test_an_older_client_ignores_fields_and_skips_events_that_it_does_not_know() -> None:
    data = api.EVENTS.encode(m.TargetChanged(1.0, Target(2)))
    assert decode_event(data[:-1] + b',"added_later":[1]}') == m.TargetChanged(1.0, Target(2))
    assert decode_event(b'{"type":"MoonRose","at":1.0}') is None


def test_events_that_are_unknown_neither_end_nor_stop_a_reader(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=3600.0, unknown_events=True) as newer:
        furnish(newer)
        client = newer.client()
        found = client.events(JOB, 0, 1)
        assert [revision for revision, _ in found] == [3]  # the first two are of another kind there
        stream = client.follow(JOB, 0)
        assert next(stream)[0] == 3
