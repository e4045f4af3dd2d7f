"""The messages of a simulated job: requests of machines and how they enter the service, and events of the store."""

from __future__ import annotations

from functools import lru_cache

from pliant.coordinator.service.inbox import RenewalReply, Sender
from pliant.coordinator.service.pump import Service
from pliant.core.messages import Command, Event
from pliant.wire.api import EVENTS, Renew, RenewAgent

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


@lru_cache(maxsize=4096)
def decode_event(data: bytes) -> Event:
    """Decode an event of the store. The checks and each agent read the same bytes, which are decoded once."""
    return EVENTS.decode(data)
