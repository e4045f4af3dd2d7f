"""The codec on messages and states that use every type a field may have, and on bytes no member should send."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Literal, NewType

import pytest

from pliant.core.messages import MemberJoined, WorldFormed
from pliant.errors import BadInput
from pliant.wire import api
from pliant.wire.codec import STATE_VERSION, Codec, decode_state, encode_state

MemberId = NewType("MemberId", str)


class How(StrEnum):
    LEFT = "left"
    LOST = "lost"


class Plain(Enum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True, slots=True)
class Lineage:
    generation: int
    step: int
    digest: int


@dataclass(frozen=True, slots=True)
class Gone:
    at: float
    member: MemberId
    how: How
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    lineage: Lineage
    kept: frozenset[int] = frozenset()
    peer: MemberId | None = None
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class WaitOver:
    pass


@dataclass(frozen=True, slots=True)
class Member:
    id: MemberId
    weight: int
    draining: bool
    grace_s: float


@dataclass(frozen=True, slots=True)
class World:
    number: int
    kind: Plain
    members: tuple[MemberId, ...]
    base: Lineage
    parent: "World | None" = None


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    target: int | Lineage
    mode: Literal["fast", "exact"]
    worlds: tuple[World, ...]
    members: dict[MemberId, Member]
    counts: dict[How, int]
    placement: tuple[tuple[str, int], ...]
    holders: frozenset[MemberId]
    states: frozenset[How]
    pairs: frozenset[tuple[MemberId, int]]
    ratio: int | float
    best: tuple[float, ...] = ()
    note: str | None = None
    extra: dict[str, tuple[Lineage, ...]] = field(default_factory=dict)


Event = Gone | Reported | WaitOver
EVENTS = Codec[Event]([Gone, Reported, WaitOver])

GONE = Gone(12.5, MemberId("m3"), How.LOST, "its lease ran out")
LINEAGE = Lineage(3, 1200, 2**64 - 1)


def job(**changes: Any) -> Job:
    ids = [MemberId(f"m{i}") for i in range(8)]
    world = World(2, Plain.TWO, tuple(ids), LINEAGE, World(1, Plain.ONE, (), LINEAGE))
    made = Job(
        name="demo",
        target=8,
        mode="exact",
        worlds=(world,),
        members={each: Member(each, 1, draining=False, grace_s=0.5) for each in ids},
        counts={How.LOST: 1, How.LEFT: 2},
        placement=(("agent-1", 4), ("agent-2", 4)),
        holders=frozenset(ids),
        states=frozenset(How),
        pairs=frozenset({(ids[1], 2), (ids[0], 7)}),
        ratio=1,
        best=(0.5, 1e-300, 1e300),
        extra={"a": (LINEAGE,)},
    )
    return replace(made, **changes)


# ------------------------------------------------------------------------------------------------- messages


def test_a_message_says_its_type_first_and_reads_well() -> None:
    assert EVENTS.encode(GONE) == (b'{"type":"Gone","at":12.5,"member":"m3","how":"lost","why":"its lease ran out"}')
    assert EVENTS.encode(WaitOver()) == b'{"type":"WaitOver"}'


@pytest.mark.parametrize(
    "message",
    [
        GONE,
        WaitOver(),
        Reported(LINEAGE),
        Reported(Lineage(-(2**63), 0, 2**64 - 1), frozenset({3, 1, 2}), MemberId("m1"), 0.1),
        replace(GONE, why='quotes " and \\ and \n and ü and 作業 and \x00'),
        replace(GONE, at=-0.0),
        replace(GONE, at=5e-324),
        replace(GONE, why="12345678901234567890123456789"),  # digits in a string are no number
    ],
)
def test_a_message_comes_back_equal(message: Event) -> None:
    back = EVENTS.decode(EVENTS.encode(message))
    assert back == message
    assert type(back) is type(message)


def test_a_person_may_write_a_message_by_hand() -> None:
    """Spaces, any order of keys, defaults left out, whole numbers for floats, escapes."""
    data = b' { "how" : "lost",\n "member":"m\\u0033", "at": 12, "t\\u0079pe": "Gone" } '
    assert EVENTS.decode(data) == Gone(12.0, MemberId("m3"), How.LOST)


def test_a_message_of_another_family_cannot_be_encoded() -> None:
    with pytest.raises(TypeError, match="Lineage is not one of Gone, Reported, WaitOver"):
        EVENTS.encode(LINEAGE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"null", "Expected `object`"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe", "malformed"),
        (b"\xef\xbb\xbf" + b'{"type":"WaitOver"}', "malformed"),
        (b"{}", "missing required field `type`"),
        (b'{"type":3}', "Expected `str`"),
        (b'{"type":null}', "Expected `str`"),
        (b'{"type":"Lost"}', "'Lost' is not one of Gone, Reported, WaitOver"),
        (b'{"type":"Lost', "truncated"),
        (b'{"type":"' + b"x" * 5000 + b'"}', r"x\.\.\."),
        (b'{"type":"WaitOver"} {}', "trailing"),
        (b'{"type":"WaitOver","type":"WaitOver"}', "'type' is given twice"),
        (b'{"type":"WaitOver","type":"Gone"}', "'type' is given twice"),
        (b'{"type":"WaitOver","v":1}', r"no field 'v' at \$"),
        (b'{"type":"WaitOver","x":NaN}', "invalid character"),
        (b'{"type":"WaitOver","x":"\xff"}', "not a Pliant message"),
        (b'{"type":"WaitOver","x":' + b"9" * 5000 + b"}", "not a Pliant message"),
        (b'{"type":"WaitOver","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"type":' + b"[" * 100_000, "Expected `str`"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        EVENTS.decode(data)
    assert len(caught.value.why) < 300


REPORT: dict[str, str] = {
    "type": '"Reported"',
    "lineage": '{"generation":1,"step":2,"digest":3}',
    "kept": "[1,2]",
    "peer": "null",
    "limit_s": "1.5",
}


def report(**changes: str) -> bytes:
    return ("{" + ",".join(f'"{key}":{text}' for key, text in (REPORT | changes).items()) + "}").encode()


def test_the_report_that_the_next_test_spoils_is_good() -> None:
    assert EVENTS.decode(report()) == Reported(Lineage(1, 2, 3), frozenset({1, 2}), None, 1.5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kept": "[true]"}, r"Expected `int`, got `bool` - at `\$.kept\[0\]`"),
        ({"kept": '["1"]'}, "Expected `int`, got `str`"),
        ({"kept": "[1.0]"}, "Expected `int`, got `float`"),
        ({"kept": "[1e3]"}, "Expected `int`, got `float`"),
        ({"kept": "[1,2,1]"}, r"given twice at \$.kept"),
        ({"kept": "{}"}, "Expected `array`"),
        ({"peer": "3"}, r"Expected `str \| null`, got `int`"),
        ({"limit_s": "NaN"}, "malformed"),
        ({"limit_s": "Infinity"}, "malformed"),
        ({"limit_s": "1e999"}, "out of range"),
        ({"limit_s": "9" * 400}, "out of range"),
        ({"limit_s": '"1"'}, "Expected `float"),
        ({"lineage": "null"}, "Expected `object`"),
        ({"lineage": '{"generation":1,"step":2}'}, "missing required field `digest`"),
        ({"lineage": '{"generation":1,"step":2,"digest":3,"digest":3}'}, "'digest' is given twice"),
        ({"lineage": '{"generation":1,"step":2,"digest":3,"digits":3}'}, r"no field 'digits' at \$.lineage"),
        ({"kept": f"[{10**20}]"}, "more than 20 digits"),
        ({"kept": f"[{-(10**20)}]"}, "more than 20 digits"),
        ({"kept": "[" + "9" * 5000 + "]"}, "out of range"),
        ({"pear": "1"}, "no field 'pear'"),
    ],
)
def test_a_message_with_anything_wrong_in_it_is_refused(changes: dict[str, str], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        EVENTS.decode(report(**changes))


@pytest.mark.parametrize(
    "message",
    [
        replace(GONE, at=math.nan),
        replace(GONE, at=math.inf),
        replace(GONE, at=10**400),
        replace(GONE, why="\ud800"),
        replace(GONE, why=None),  # type: ignore[arg-type]
        replace(GONE, why=b"bytes"),  # type: ignore[arg-type]
        Reported(LINEAGE, limit_s=math.nan),  # would be written as null, and null is allowed here
        Reported(LINEAGE, limit_s=-math.inf),
        Reported(Lineage(True, 0, 0)),
        Reported(Lineage(0, 0, 10**20)),
        Reported(LINEAGE, kept=frozenset({1, "a"})),  # type: ignore[arg-type]
        Reported(LINEAGE, kept=[1, 2]),  # type: ignore[arg-type]
        Reported(None),  # type: ignore[arg-type]
    ],
)
def test_what_would_not_read_back_is_not_written(message: Event) -> None:
    with pytest.raises(BadInput):
        EVENTS.encode(message)


# ------------------------------------------------------------------------------------------------ canonical


def test_a_whole_number_in_a_field_for_floats_is_written_as_a_float() -> None:
    assert EVENTS.encode(replace(GONE, at=12)) == EVENTS.encode(replace(GONE, at=12.0))
    assert encode_state(job(best=(1, 2))) == encode_state(job(best=(1.0, 2.0)))


def test_where_both_are_allowed_they_stay_what_they_are() -> None:
    assert b'"ratio":1,' in encode_state(job(ratio=1))
    assert b'"ratio":1.0,' in encode_state(job(ratio=1.0))
    assert type(decode_state(encode_state(job(ratio=1.0)), Job).ratio) is float


def test_the_order_in_which_dicts_and_sets_were_filled_does_not_show() -> None:
    one = job()
    other = job(
        members=dict(reversed(one.members.items())),
        counts=dict(reversed(one.counts.items())),
        holders=frozenset(sorted(one.holders, reverse=True)),
    )
    assert encode_state(one) == encode_state(other)
    assert json.loads(encode_state(one))["holders"] == sorted(one.holders)
    assert json.loads(encode_state(one))["pairs"] == [["m0", 7], ["m1", 2]]


def test_other_processes_write_the_same_bytes() -> None:
    """A set's own order depends on the process's hash seed; ours must not."""
    program = (
        "from dataclasses import make_dataclass\n"
        "from pliant.wire.codec import encode_state\n"
        "S = make_dataclass('S', [('x', frozenset[str])], frozen=True)\n"
        "print(encode_state(S(frozenset(map(str, range(50))))).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


# --------------------------------------------------------------------------------------------------- states


def test_a_state_says_its_version_and_type_first() -> None:
    assert encode_state(LINEAGE) == (
        b'{"v":1,"type":"Lineage","generation":3,"step":1200,"digest":18446744073709551615}'
    )
    assert encode_state(WaitOver()) == b'{"v":1,"type":"WaitOver"}'
    assert STATE_VERSION == 1


def test_a_state_comes_back_equal_and_writes_the_same_bytes() -> None:
    data = encode_state(job())
    back = decode_state(data, Job)
    assert back == job()
    assert encode_state(back) == data
    assert isinstance(back.worlds[0].kind, Plain)
    assert isinstance(back.holders, frozenset)
    assert decode_state(encode_state(job(target=LINEAGE, note="n")), Job) == job(target=LINEAGE, note="n")


def test_a_state_with_its_keys_in_another_order_is_the_same_state() -> None:
    shuffled = dict(reversed(json.loads(encode_state(job())).items()))
    assert decode_state(json.dumps(shuffled).encode(), Job) == job()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"{}", "missing required field `v`"),
        (b'{"v":2,"type":"Lineage"}', "format version 2; this version of Pliant reads 1"),
        (b'{"v":1,"type":"Gone"}', "state of a 'Gone', not of a Lineage"),
        (b'{"v":"1","type":"Lineage"}', "Expected `int`"),
        (b'{"v":1,"type":"Lineage","generation":1,"step":2}', "missing required field `digest`"),
        (b'{"v":1,"type":"Lineage","generation":1,"step":2,"digest":3,"v":2}', "'v' is given twice"),
        (b'{"v":1,"type":"Lineage","generation":1,"step":2,"digest":3,"w":2}', "no field 'w'"),
    ],
)
def test_a_state_that_cannot_be_trusted_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        decode_state(data, Lineage)


def test_every_cut_and_most_changed_bytes_of_a_state_are_noticed() -> None:
    data = encode_state(LINEAGE)
    for i in range(len(data)):
        with pytest.raises(BadInput):
            decode_state(data[:i], Lineage)
        changed = data[:i] + bytes([data[i] ^ 0x80]) + data[i + 1 :]
        with pytest.raises(BadInput):
            decode_state(changed, Lineage)


# ------------------------------------------------------------------------------------------ what was written before

GRID_THEN = '"grid":{"samples":60,"batch":10,"slots":6,"epochs":2}'
JOINED_THEN = (
    '{"type":"MemberJoined","at":1.0,"member":{"id":"a","number":1,"agent":"x","weight":1,"draining":false,'
    '"grace_s":0.0,"why":""},"terms":{' + GRID_THEN + ',"seed":7,"checkpoint_every":0}}'
)
FORMED_THEN = (
    '{"type":"WorldFormed","at":1.0,"world":{"number":1,"kind":"rollback","members":["a"],"weights":[1],'
    '"base":{"generation":0,"step":0,"digest":0},"hold":false,"why":"the job starts"}}'
)


def test_what_was_logged_before_members_had_addresses_can_be_read() -> None:
    joined, formed = (api.EVENTS.decode(text.encode()) for text in (JOINED_THEN, FORMED_THEN))
    assert isinstance(joined, MemberJoined)
    assert (joined.member.address, joined.member.pid, joined.terms.extra) == ("", 0, ())
    assert isinstance(formed, WorldFormed)
    assert (formed.world.members, formed.world.addresses) == (("a",), ())
