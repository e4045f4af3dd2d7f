"""Commands and events of parameter servers."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model.names import AgentId, MemberId
from pliant.core.ps.model import BucketLayout

# ------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class JoinServers:
    """A parameter server is ready to hold buckets; the fields are those of `Join`."""

    member: MemberId
    agent: AgentId
    address: str
    pid: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportCopied:
    """A primary has filled all incoming copies that a layout gives it."""

    member: MemberId
    layout: int


ServerCommand = JoinServers | ReportCopied

# -------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ServerJoined:
    at: float
    member: MemberId
    agent: AgentId
    number: int
    pid: int
    address: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CopiesFilled:
    """A primary filled its incoming copies of the current layout."""

    at: float
    member: MemberId


@dataclass(frozen=True, slots=True)
class LayoutChanged:
    """The servers of buckets changed. Of `lost` buckets no copy was left: they continue from the last checkpoint."""

    at: float
    layout: BucketLayout
    lost: int = 0


ServerEvent = ServerJoined | CopiesFilled | LayoutChanged
