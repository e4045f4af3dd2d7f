"""The wires of `make networks`, what it counts as broken, and one short scenario where this machine can have one."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from networks import __main__ as harness
from networks.packets import ends_of, resets
from networks.scenarios import SCENARIOS
from networks.weather import BACKLOG_S, EVERY_ADDRESS, Way, Weather
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.model.job import Member, Terms
from pliant.core.model.names import AgentId, MemberId
from tidy.files import ROOT

HERE, THERE = "10.77.0.2", "10.77.0.1"


def frame(flags: int = 0x10, sequence: int = 1000, acknowledged: int = 2000, body: bytes = b"word") -> bytes:
    """A TCP segment from HERE, port 4000, to THERE, port 80."""
    ethernet = b"\x02" * 6 + b"\x04" * 6 + b"\x08\x00"
    tcp = struct.pack("!HHIIBBHHH", 4000, 80, sequence, acknowledged, 5 << 4, flags, 512, 0, 0) + body
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0)
    return ethernet + head + socket.inet_aton(HERE) + socket.inet_aton(THERE) + tcp


def way(**weather: object) -> Way:
    return Way(random.Random(0), Weather(**weather))  # type: ignore[arg-type]  # as its fields are called


def sent(through: Way, count: int, peer: str | None = None) -> int:
    """Return how many of so many frames come through, if they are waited for."""
    for _ in range(count):
        through.send(bytes(100), peer, 0.0)
    return len(through.arrived(1000.0))


# ------------------------------------------------------------------------------------------------------ frames


def test_a_frame_says_whose_it_is() -> None:
    ends = ends_of(frame())
    assert ends is not None
    assert (ends.source, ends.target) == (HERE, THERE)
    assert ends.flow == frozenset({(HERE, 4000), (THERE, 80)})
    assert ends_of(b"\xff" * 12 + b"\x08\x06" + bytes(28)) is None  # ARP


def test_a_reset_goes_to_both_ends_with_the_numbers_they_expect() -> None:
    both = resets(frame(sequence=7, acknowledged=9))
    assert both is not None
    for reset, source, target, number in ((both[0], HERE, THERE, 7), (both[1], THERE, HERE, 9)):
        ends = ends_of(reset)
        assert ends is not None
        assert (ends.source, ends.target) == (source, target)
        assert struct.unpack_from("!I", reset, 38)[0] == number
        assert reset[47] == 0x04
        for covered in (reset[14:34], reset[26:34] + struct.pack("!BBH", 0, 6, 20) + reset[34:]):
            assert _is_sound(covered)


def _is_sound(data: bytes) -> bool:
    """With its checksum in it, the sum of the words is all ones."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def test_what_opens_a_connection_or_resets_it_is_not_answered_with_a_reset() -> None:
    assert resets(frame(flags=0x02)) is None
    assert resets(frame(flags=0x14)) is None


# ----------------------------------------------------------------------------------------------------- weather


def test_on_a_fair_way_everything_arrives_at_once_and_in_order() -> None:
    fair = way()
    for number in range(3):
        fair.send(bytes([number]), None, 1.0)
    assert fair.arrived(1.0) == [b"\x00", b"\x01", b"\x02"]
    assert fair.next_at() is None
    assert fair.is_fair


def test_some_are_lost_and_some_come_twice() -> None:
    assert 850 <= sent(way(loss=0.1), 1000) <= 950
    assert 1050 <= sent(way(twice=0.1), 1000) <= 1150


def test_late_frames_come_late_and_overtake_one_another() -> None:
    late = way(delay_s=0.05, jitter_s=0.03)
    for number in range(200):
        late.send(bytes([number]), None, number * 0.001)
    assert late.arrived(0.049) == []
    found = late.arrived(10.0)
    assert len(found) == 200
    assert found != sorted(found)


def test_a_narrow_way_lets_so_many_bytes_through_and_loses_what_would_wait_too_long() -> None:
    narrow = way(rate=1000.0)
    assert sent(narrow, 100) == int(1000 * BACKLOG_S / 100)
    assert narrow.counts["lost"] == 96


def test_one_can_be_muted_or_everybody() -> None:
    assert sent(way(mute=(THERE,)), 5, peer=THERE) == 0
    assert sent(way(mute=(THERE,)), 5, peer=HERE) == 5
    assert sent(way(mute=(THERE,)), 5, peer=None) == 5  # ARP
    assert sent(way(mute=(EVERY_ADDRESS,)), 5, peer=None) == 0


# ---------------------------------------------------------------------------------------------------- verdicts


def joined(name: str, pid: int) -> m.Event:
    return m.MemberJoined(0.0, Member(MemberId(name), 1, AgentId("agent-1"), pid=pid), Terms(Grid(8, 8, 1, 1), seed=0))


def gone(name: str, how: str) -> m.Event:
    return m.MemberGone(0.0, MemberId(name), how, "its lease ran out")


def test_who_stays_is_one_process_and_who_is_gone_was_struck() -> None:
    fine = [joined("a", 1), joined("b", 2), gone("a", "lost"), gone("b", "left")]
    assert harness.gone_for_no_reason(fine, {"a"}) == []
    assert harness.gone_for_no_reason(fine, set()) == ["a is gone, and nothing was done to it: lost: its lease ran out"]
    assert harness.gone_for_no_reason([*fine, joined("b", 3)], {"a"}) == ["b was several processes: [2, 3]"]


def test_other_weights_and_missing_workers_are_told(tmp_path: Path) -> None:
    for number in range(3):
        said = {"member": f"m{number}", "weights": "w", "optimizer": "o" if number else "x"}
        (tmp_path / f"{number}.said").write_text(json.dumps(said))
    assert harness._other_bits(tmp_path, {"weights": "w", "optimizer": "o"}) == ["m0 ends with other optimizer"]
    (tmp_path / "0.said").unlink()
    assert harness._other_bits(tmp_path, {"weights": "w"}) == ["2 workers came to the end, not 3"]


def test_every_scenario_says_what_it_does() -> None:
    assert all(act.__doc__ for act in SCENARIOS.values())


def test_where_it_cannot_be_tried_it_says_why(tmp_path: Path) -> None:
    """Without `ip`; as another user than root the reason is another one."""
    env = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "networks"]
    done = subprocess.run(command, cwd=ROOT / "tests", env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ok"]
    assert said["skipped"] in done.stdout.splitlines()[0]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_coordinator_cut_off_from_everybody_costs_a_real_training_nothing(tmp_path: Path) -> None:
    if why := harness.why_not():
        pytest.skip(why)
    expected = harness.alone(tmp_path / "alone")
    said = harness.scenario("the coordinator from every agent", tmp_path / "live", 0, expected)
    assert said["broken"] == []
    assert said["lost"] == 0
    assert said["frames"]["muted"] > 0
