"""Leases under any pattern of who is heard when: no member expires early, nor while no member is heard (rule 19)."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.coordinator.service.liveness import ISOLATION_FRACTION
from pliant.core import messages as m
from pliant.core.leases import LEASE_TTL_S
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import MemberId
from pliant.wire.api import Renew, RenewAgent
from unit.coordinator.shaky import Desk, desk
from unit.core.build import A, B, C, X, join

TICK_S = 0.5
MEMBERS = (A, B, C, X)

heard = st.frozensets(st.sampled_from(MEMBERS), max_size=2)
stretches = st.tuples(heard, st.integers(1, 40))  # who is heard in each of so many ticks


def renewal(name: str) -> Renew | RenewAgent:
    return RenewAgent(X) if name == X else Renew(MemberId(name))


def there(one: Desk) -> set[str]:
    return {*one.job().members, *(agent.id for agent in one.job().agents)}


@given(st.lists(stretches, max_size=8))
def test_a_member_that_expires_was_silent_for_a_lease_in_which_others_were_heard(
    pattern: list[tuple[set[str], int]],
) -> None:
    one = desk()
    one.tell(0.0, m.Create("demo", JobSpec(1, 6, Target(3))), m.AgentJoin(X, 2), join(A), join(B), join(C))
    last = dict.fromkeys(MEMBERS, 0.0)
    spoke = now = 0.0
    for names, ticks in pattern:
        for _ in range(ticks):
            now += TICK_S
            speaking = [name for name in sorted(names) if name in there(one)]
            before = there(one)
            one.pump(now, *(renewal(name) for name in speaking))
            last.update(dict.fromkeys(speaking, now))
            spoke = now if speaking else spoke
            for name in before - there(one):
                assert now - last[name] >= LEASE_TTL_S
                assert now - spoke <= LEASE_TTL_S * ISOLATION_FRACTION
    # Whatever happened before: if one speaks from now on as often as it should, the others are lost after a lease.
    one.tell(now, join(MemberId("last")))
    for tick in range(1, int(LEASE_TTL_S / TICK_S) + 1):
        one.pump(now + tick * TICK_S, *([Renew(MemberId("last"))] if tick % 6 == 0 else []))
    assert there(one) == {"last"}
