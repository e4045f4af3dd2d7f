"""Any order of joins, losses, drains and reports: buckets keep their copies, and end up evenly spread."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core import messages as m
from pliant.core.model.names import MemberId
from pliant.core.ps import messages as p
from pliant.core.ps.model import BUCKETS
from unit.core.ps.fleet import Fleet

MOVES = st.lists(st.tuples(st.sampled_from(["join", "kill", "drain", "report", "fill"]), st.integers(0, 7)), max_size=8)


@settings(max_examples=12, deadline=None)
@given(MOVES)
def test_buckets_stay_on_servers_that_have_them(moves: list[tuple[str, int]]) -> None:
    fleet, joined = Fleet(), 0
    fleet.settle(MemberId("s0"))
    for move, number in moves:
        servers = sorted(name for name, member in fleet.it.members.items() if member.is_server)
        chosen = servers[number % len(servers)] if servers else None
        if move == "join":
            joined += 1
            fleet.serve(MemberId(f"s{joined}"))
        elif move == "fill":
            fleet.fill()
        elif chosen is not None and move == "kill":
            fleet.kill(chosen)
        elif chosen is not None and move == "drain":
            fleet.tell(m.Drain(chosen, 30, "x"))
        elif chosen is not None:
            fleet.tell(p.ReportCopied(chosen, fleet.layout.number))
    fleet.fill()
    staying = [name for name, member in fleet.it.members.items() if member.is_server and not member.draining]
    if not staying:
        return
    primaries, backups = fleet.primaries(), fleet.backups()
    assert sum(primaries[name] for name in staying) == BUCKETS
    assert max(primaries[name] for name in staying) - min(primaries[name] for name in staying) <= 1
    if len(staying) > 1:
        assert sum(backups[name] for name in staying) == BUCKETS
        assert max(backups[name] for name in staying) - min(backups[name] for name in staying) <= 2
