"""Messages between the processes of a schedule and the harness: length, then JSON, over a Unix socket.

A member has one connection for everything that does not go to the coordinator: the data plane, and its trace. So what
the harness knows of a member is in the order in which it happened there, and nothing a member let others know by the
data plane can be seen before the trace of what came before it.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from signal import SIGKILL
from typing import get_args

from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member.signals import Admission, Break, Collect, Failed, Released, Returned, Wire, Wired, WireFailed
from pliant.core.member.state import Phase
from pliant.core.messages import Command
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World
from pliant.wire.codec import Body, Codec
from pliant_sim.live.toy_model import Content, ToyModel

JOB = "sim"
LEASE_TTL_S = 2.0
GRACE_S = 4.0  # what SIGTERM leaves a worker
FENCED = 75

_LENGTH = struct.Struct("<I")

# ------------------------------------------------------------------------------- from a member, data plane


@dataclass(frozen=True, slots=True)
class Hello:
    """The first words of a member, or of an agent (which has no member's name)."""

    member: MemberId
    agent: AgentId
    pid: int


@dataclass(frozen=True, slots=True)
class Enter:
    """Enter the next operation of that world's group."""

    collect: Collect
    part: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TellLetIn:
    member: MemberId
    signal: Admission


@dataclass(frozen=True, slots=True)
class TellReleased:
    member: MemberId
    signal: Released


@dataclass(frozen=True, slots=True)
class AskStripe:
    donor: MemberId
    transfer: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class GiveStripe:
    asker: MemberId
    transfer: int
    index: int
    count: int
    model: ToyModel
    lines: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class AskGradient:
    donor: MemberId
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class GiveGradient:
    asker: MemberId
    lineage: Lineage
    line: LedgerLine | None
    content: Content


# ------------------------------------------------------------------------------------ from a member, trace


@dataclass(frozen=True, slots=True)
class State:
    """The observed fields of a member's machine after a signal changed one, with the wall-clock time."""

    at: float
    phase: Phase
    world: World | None
    holds: bool
    lineage: Lineage
    lines: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class Applies:
    line: LedgerLine
    content: Content
    model: ToyModel  # as it is then


@dataclass(frozen=True, slots=True)
class AtBoundary:
    model: ToyModel


@dataclass(frozen=True, slots=True)
class Installs:
    lineage: Lineage
    aside: tuple[ToyModel, ...]


@dataclass(frozen=True, slots=True)
class Restores:
    checkpoint: Checkpoint | None
    model: ToyModel


@dataclass(frozen=True, slots=True)
class WroteFile:
    name: str
    file: str
    model: ToyModel


@dataclass(frozen=True, slots=True)
class Leaves:
    """It goes by its own will; `ended` and `checkpoint` are what it had been told."""

    code: int
    why: str
    complete: bool
    ended: bool
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Viewed:
    """The view it made of what it was told, as a digest."""

    revision: int
    digest: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The coordinator accepted a sign of life that was sent then and answered then, in wall-clock seconds."""

    sent: float
    answered: float


@dataclass(frozen=True, slots=True)
class Acked:
    """The coordinator accepted a command."""

    command: str
    revision: int


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """An agent saw a worker's process end."""

    member: MemberId
    code: int


@dataclass(frozen=True, slots=True)
class Kills:
    """An agent ends a worker whose grace period is over."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that must not happen did."""

    what: str


Up = (
    Hello
    | Wire
    | Break
    | Enter
    | TellLetIn
    | TellReleased
    | AskStripe
    | GiveStripe
    | AskGradient
    | GiveGradient
    | State
    | Applies
    | AtBoundary
    | Installs
    | Restores
    | WroteFile
    | Leaves
    | Viewed
    | Heard
    | Acked
    | ChildEnded
    | Kills
    | Trouble
)

# --------------------------------------------------------------------------------------------- to a member


@dataclass(frozen=True, slots=True)
class Reduced:
    """The buffers after a reduction; `Returned` follows."""

    content: Content


@dataclass(frozen=True, slots=True)
class StripeWanted:
    asker: MemberId
    transfer: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class StripeGiven:
    transfer: int
    index: int
    count: int
    model: ToyModel
    lines: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class GradientWanted:
    asker: MemberId
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class GradientGiven:
    lineage: Lineage
    line: LedgerLine | None
    content: Content


@dataclass(frozen=True, slots=True)
class Broken:
    """A transfer cannot go on; 0: the one of a gradient."""

    transfer: int


@dataclass(frozen=True, slots=True)
class Pace:
    """The factor by which computing takes longer from now on."""

    factor: float


@dataclass(frozen=True, slots=True)
class CloseWatch:
    """Cut the connection of the watch, and stay away from it so long."""

    away_s: float


Down = (
    Wired
    | WireFailed
    | Returned
    | Failed
    | Admission
    | Released
    | Reduced
    | StripeWanted
    | StripeGiven
    | GradientWanted
    | GradientGiven
    | Broken
    | Pace
    | CloseWatch
)

UP: Codec[Up] = Codec(get_args(Up))
DOWN: Codec[Down] = Codec(get_args(Down))
COMMANDS: Codec[Command] = Codec(get_args(Command))
VIEW: Body[View] = Body(View)


def framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def unframed(buffer: bytearray) -> list[bytes]:
    """Take every whole frame out of a buffer."""
    frames = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        frames.append(bytes(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return frames


class Connection:
    """A process's end of its connection to the harness."""

    def __init__(self, path: str, hello: Hello) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lock = threading.Lock()
        self.say(hello)

    def say(self, message: Up) -> None:
        with self._lock:
            self._socket.sendall(framed(UP.encode(message)))

    def hear(self) -> Iterator[Down]:
        """Messages as they come; the end: the harness is gone."""
        buffer = bytearray()
        while data := self._socket.recv(65536):
            buffer += data
            for frame in unframed(buffer):
                yield DOWN.decode(frame)

    def close(self) -> None:
        """The others see it at once, whatever else this process does."""
        self._socket.shutdown(socket.SHUT_RDWR)


def die_with_parent() -> None:
    """However our parent ends, we end too, even when stopped. Call in the child, first thing."""
    ctypes.CDLL(None).prctl(1, int(SIGKILL))
