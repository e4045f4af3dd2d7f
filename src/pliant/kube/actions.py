"""Actions: what the operator does next, in order. Each is one call to an API, and each may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.model.job import JobSpec


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Keep the object until the coordinator's job has ended."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the API server remove the object."""


@dataclass(frozen=True, slots=True)
class FillTarget:
    """Write `spec.workers.target` once, where no one has set it, so that the scale subresource works."""

    target: int


@dataclass(frozen=True, slots=True)
class EnsureObject:
    """Create an object, or change it where it differs, such as the Service and the PodDisruptionBudget."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnsureToken:
    """Create a join token of the coordinator's job and the Secret that holds it, unless the Secret exists."""

    secret: str


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create the job in the coordinator. With `only_settings`, change it if it has not ended meanwhile."""

    spec: JobSpec
    only_settings: bool = False


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """Change the coordinator's target."""

    target: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    """End the job in the coordinator."""

    why: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Delete the ended job in the coordinator."""


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Ask a pod's agent to leave within its grace period, with all its members."""

    pod: str
    grace_s: float
    why: str
    immediate: bool = False


@dataclass(frozen=True, slots=True)
class MarkJoined:
    """Record on a pod that its agent was seen at the coordinator."""

    pod: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod whose index is reserved in the status."""

    role: str
    index: int
    tier: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete one particular pod. `revision`: only if it has not changed since. `force`: without asking its node."""

    pod: str
    uid: str
    why: str
    revision: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status, if the object is still the one that was read. A conflict ends the pass."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the ElasticJob itself, after its time to live."""


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim that the operator made for checkpoints."""

    claim: str


@dataclass(frozen=True, slots=True)
class PublishEvent:
    """Publish an event of the ElasticJob."""

    reason: str
    message: str
    warning: bool = False


Action = (
    AddFinalizer
    | RemoveFinalizer
    | FillTarget
    | EnsureObject
    | EnsureToken
    | CreateJob
    | ResizeJob
    | CancelJob
    | ForgetJob
    | DrainPod
    | MarkJoined
    | CreatePod
    | DeletePod
    | WriteStatus
    | DeleteObject
    | DeleteClaim
    | PublishEvent
)
