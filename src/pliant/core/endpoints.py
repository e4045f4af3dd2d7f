"""Decide which coordinator a client asks, how long it waits there, and when it opens its watch again.

A frozen coordinator, or one whose machine is gone, neither answers nor closes its connections. So every request has a
deadline well below a lease, and is repeated at the next coordinator. A watch has none: it is opened again as soon as a
renewal shows that another coordinator leads, or that the same one had not answered for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from pliant.core.leases import RENEWALS_PER_LEASE

RENEWAL_LIMITS_PER_LEASE = 10  # a renewal is repeated elsewhere after this part of a lease
COMMAND_LIMITS_PER_LEASE = 4  # a command waits for the store, so it may take longer
SILENCE_FRACTION = 0.3  # of a lease, for which a silent coordinator is left out; a standby takes over within it
PAUSES_PER_LEASE = 20  # between two attempts at coordinators of which none leads, at most this part of a lease
ANSWER_S = 10.0  # for an answer, where no other coordinator could be asked
LEARNED_MAX = 4  # URLs that standbys named and that were not configured


def renewal_limit_s(lease_ttl_s: float, endpoints: int) -> float:
    """Return how long a renewal waits for an answer at one coordinator, before it asks the next."""
    return min(ANSWER_S, lease_ttl_s / (RENEWAL_LIMITS_PER_LEASE if endpoints > 1 else RENEWALS_PER_LEASE))


def command_limit_s(lease_ttl_s: float, endpoints: int) -> float:
    """Return how long any other request waits for an answer at one coordinator."""
    return min(ANSWER_S, lease_ttl_s / COMMAND_LIMITS_PER_LEASE) if endpoints > 1 else ANSWER_S


def check_limit_s(lease_ttl_s: float, endpoints: int) -> float:
    """Return how long the check of a new connection may take. A coordinator answers it from memory, like a renewal."""
    return renewal_limit_s(lease_ttl_s, endpoints) if endpoints > 1 else ANSWER_S


def silence_s(lease_ttl_s: float) -> float:
    """Return how long a coordinator that missed a deadline is not asked again, while others are there to be asked."""
    return lease_ttl_s * SILENCE_FRACTION


def pause_limit_s(lease_ttl_s: float, endpoints: int) -> float:
    """Return how long a client pauses at most before it asks all coordinators again."""
    return lease_ttl_s / (PAUSES_PER_LEASE if endpoints > 1 else 2 * RENEWALS_PER_LEASE)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A client's knowledge of its coordinators, by their position in `urls`. Times are of the client's own clock.

    `preferred` answered last. `silent` endpoints missed a deadline: until a time, others are asked instead. A watch
    that was opened before `moved_at` may be at a coordinator that is frozen or gone.
    """

    urls: tuple[str, ...]
    configured: int = 0  # the first so many urls; the others were learned from standbys
    preferred: int = 0
    silent: dict[int, float] = field(default_factory=dict)
    missed: frozenset[int] = frozenset()  # missed a deadline, and have not answered since
    moved_at: float = -inf


def endpoints_of(urls: tuple[str, ...]) -> Endpoints:
    """Return what a client knows at its start."""
    return Endpoints(urls, configured=len(urls))


def in_order(known: Endpoints, now: float) -> tuple[int, ...]:
    """Return the endpoints to ask, the preferred one first. Silent ones are left out, unless all are."""
    every = range(len(known.urls))
    around = (*every[known.preferred :], *every[: known.preferred])
    if not known.silent:
        return around
    return tuple(each for each in around if known.silent.get(each, -inf) <= now) or around


def note_answer(known: Endpoints, endpoint: int, asked_at: float, now: float) -> Endpoints:
    """Note that a coordinator that leads answered. An answer to a request from before a move tells nothing new."""
    if asked_at < known.moved_at:
        return known
    moved = endpoint != known.preferred or endpoint in known.missed
    if not moved and endpoint not in known.silent:
        return known
    silent = {each: until for each, until in known.silent.items() if each != endpoint}
    return replace(
        known,
        preferred=endpoint,
        silent=silent,
        missed=known.missed - {endpoint},
        moved_at=now if moved else known.moved_at,
    )


def note_silence(known: Endpoints, endpoint: int, silent_s: float, asked_at: float, now: float) -> Endpoints:
    """Note that an endpoint missed a deadline: for `silent_s` the others are asked.

    The silence of a request from before a move, such as an abandoned watch, tells nothing new.
    """
    if asked_at < known.moved_at:
        return known
    return replace(known, silent={**known.silent, endpoint: now + silent_s}, missed=known.missed | {endpoint})


def note_leader(known: Endpoints, url: str, now: float) -> tuple[Endpoints, int | None]:
    """Note that a standby named the leader's URL. Return the endpoint to ask next; None if it is silent or refused.

    A URL that was not configured is followed too: a client may have been given one URL of three. It must have the same
    scheme: https is never left for http. The token goes there only if the coordinator there proves to know it.
    """
    if url in known.urls:
        named = known.urls.index(url)
        return known, named if known.silent.get(named, -inf) <= now else None
    is_alike = url.partition(":")[0] == known.urls[0].partition(":")[0]
    if not is_alike or len(known.urls) >= known.configured + LEARNED_MAX:
        return known, None
    return replace(known, urls=(*known.urls, url)), len(known.urls)
