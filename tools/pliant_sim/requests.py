"""The requests of simulated machines, commands and renewals, and how they enter the service."""

from __future__ import annotations

from pliant.coordinator.service.inbox import RenewalReply, Sender
from pliant.coordinator.service.pump import Service
from pliant.core.messages import Command
from pliant.wire.api import Renew, RenewAgent

Request = Command | Renew | RenewAgent


def sender_of(renewal: Renew | RenewAgent) -> Sender:
    return Sender("member", renewal.member) if isinstance(renewal, Renew) else Sender("agent", renewal.agent)


def renew_at_once(service: Service, job: str, request: Request, now: float) -> RenewalReply | None:
    """Answer a renewal as the server does; None for a command, and for a renewal that must wait for the next pump."""
    if not isinstance(request, Renew | RenewAgent):
        return None
    return service.renew(job, sender_of(request), request.revision, now)


def queue_request(service: Service, job: str, request: Request, ticket: object) -> bool:
    """Queue a request for the next pump. False if the queue is full."""
    if isinstance(request, Renew | RenewAgent):
        return service.postpone(job, sender_of(request), request.revision, ticket)
    return service.submit(job, request, ticket)
