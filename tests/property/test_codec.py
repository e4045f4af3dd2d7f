"""Whatever a message holds, it comes back; whatever bytes come, the answer is a message or BadInput."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NewType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import BadInput
from pliant.wire.codec import Codec, decode_state, encode_state

Id = NewType("Id", str)


class Kind(StrEnum):
    PLANNED = "planned"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Point:
    step: int
    digest: int


@dataclass(frozen=True, slots=True)
class World:
    number: int
    kind: Kind
    members: tuple[Id, ...]
    base: Point | None
    hold: bool


@dataclass(frozen=True, slots=True)
class Formed:
    at: float
    world: World
    why: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    at: float
    member: Id
    limit_s: float | None
    kept: frozenset[int]


@dataclass(frozen=True, slots=True)
class Idle:
    pass


@dataclass(frozen=True, slots=True)
class State:
    worlds: tuple[World, ...]
    points: dict[Id, Point]
    pairs: frozenset[tuple[Id, int]]
    holders: frozenset[Id]
    ratio: int | float
    target: int | Point
    best: tuple[float, ...]
    note: str | None


Event = Formed | Gone | Idle
EVENTS = Codec[Event]([Formed, Gone, Idle])

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = text.map(Id)
integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
any_number = floats | st.integers(-(10**15), 10**15)  # what mypy lets stand in a field for floats
points = st.builds(Point, integers, integers)
worlds = st.builds(
    World,
    integers,
    st.sampled_from(Kind),
    st.lists(ids, max_size=4).map(tuple),
    st.none() | points,
    st.booleans(),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Formed, any_number, worlds, text),
    st.builds(Gone, any_number, ids, st.none() | any_number, st.frozensets(integers, max_size=5)),
    st.just(Idle()),
)
states = st.builds(
    State,
    st.lists(worlds, max_size=3).map(tuple),
    st.dictionaries(ids, points, max_size=5),
    st.frozensets(st.tuples(ids, integers), max_size=4),
    st.frozensets(ids, max_size=6),
    floats | integers,
    integers | points,
    st.lists(any_number, max_size=4).map(tuple),
    st.none() | text,
)


@given(events)
def test_every_message_comes_back_equal(event: Event) -> None:
    data = EVENTS.encode(event)
    back = EVENTS.decode(data)
    assert back == event
    assert EVENTS.encode(back) == data


@given(states)
def test_every_state_comes_back_equal_and_byte_for_byte(state: State) -> None:
    data = encode_state(state)
    back = decode_state(data, State)
    assert back == state
    assert encode_state(back) == data
    assert json.loads(data)["v"] == 1


@given(states, st.randoms(use_true_random=False))
def test_the_order_of_filling_never_shows(state: State, random: Any) -> None:
    keys = list(state.points)
    random.shuffle(keys)
    changes = {
        "points": {key: state.points[key] for key in keys},
        "holders": frozenset(random.sample(sorted(state.holders), len(state.holders))),
    }
    other = State(**{field.name: getattr(state, field.name) for field in fields(State)} | changes)
    assert encode_state(other) == encode_state(state)


@given(events, st.randoms(use_true_random=False), st.sampled_from([None, 1]))
def test_any_json_of_the_same_content_is_the_same_message(event: Event, random: Any, indent: int | None) -> None:
    """Another writer of JSON: other spaces, escapes and order of keys."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(key, shuffled(item)) for key, item in value.items()]
            random.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    data = EVENTS.encode(event)
    other = json.dumps(shuffled(json.loads(data)), indent=indent).encode()
    assert EVENTS.encode(EVENTS.decode(other)) == data


@given(events, st.data())
def test_a_field_more_anywhere_is_refused(event: Event, data: st.DataObject) -> None:
    content = json.loads(EVENTS.encode(event))
    places = [content]
    if "world" in content:
        places.append(content["world"])
        if content["world"]["base"]:
            places.append(content["world"]["base"])
    data.draw(st.sampled_from(places))["surplus"] = 1
    with pytest.raises(BadInput, match="surplus"):
        EVENTS.decode(json.dumps(content).encode())


json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(events, st.data())
def test_a_field_with_another_value_is_taken_whole_or_refused(event: Event, data: st.DataObject) -> None:
    content = json.loads(EVENTS.encode(event))
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(json_values)
    refuses_or_takes(lambda: EVENTS.decode(json.dumps(content).encode()))


@settings(max_examples=300)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_message_or_bad_input(data: bytes) -> None:
    refuses_or_takes(lambda: EVENTS.decode(data))
    with pytest.raises(BadInput):
        decode_state(data, State)


@settings(max_examples=300)
@given(events, st.data())
def test_a_damaged_message_is_a_message_or_bad_input(event: Event, data: st.DataObject) -> None:
    encoded = bytearray(EVENTS.encode(event))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        encoded = encoded or bytearray(b"x")
    refuses_or_takes(lambda: EVENTS.decode(bytes(encoded)))


def refuses_or_takes(decode: Callable[[], Event]) -> None:
    """BadInput is one honest answer; the other is a value that the codec itself would write."""
    try:
        event = decode()
    except BadInput:
        return
    assert EVENTS.decode(EVENTS.encode(event)) == event
