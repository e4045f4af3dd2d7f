"""A change applied to what a member knew gives what there is, to the bit, whatever the two are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind
from pliant.errors import BadInput
from pliant.wire.codec import Body
from pliant.wire.views import MemberRuns, PeerKey, ViewDelta, ViewUpdate, apply_update, view_delta

TOLD = Body(ViewUpdate)
NAMES = [MemberId(f"m{i}") for i in range(12)]
members = st.sampled_from(NAMES)
lineages = st.builds(Lineage, st.integers(0, 9), st.integers(0, 99), st.integers(0, 2**64 - 1))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, ...]:
    found = []
    for number in sorted(draw(st.sets(st.integers(1, 9), max_size=3))):
        names = tuple(draw(st.lists(members, min_size=1, max_size=10, unique=True)))
        weights = tuple(draw(st.lists(st.integers(1, 3), min_size=len(names), max_size=len(names))))
        kind, base = draw(st.sampled_from(WorldKind)), draw(lineages)
        hold, why = draw(st.booleans()), draw(st.text(max_size=9))
        # Mostly a member has the address it had; worlds of earlier versions have none, and the rest cannot be.
        addresses = tuple(draw(st.sampled_from(["", f"{name}:1", f"{name}:1", "other:2"])) for name in names)
        where = draw(st.sampled_from([addresses, ()]))
        found.append(World(number, kind, names, weights, base, hold, why, where, draw(st.integers(0, number))))
    return tuple(found)


views = st.builds(
    View,
    revision=st.integers(1, 100),
    state=st.sampled_from(JobState),
    why=st.text(max_size=20),
    known=st.booleans(),
    draining=st.booleans(),
    grace_s=st.floats(0, 100),
    worlds=worlds(),
    current=st.integers(0, 9),
    sealed=st.integers(0, 9),
    unenterable_generations=st.frozensets(st.integers(1, 9)),
    gone_in_open_worlds=st.frozensets(members),
    holders=st.frozensets(members),
    durable=lineages,
    checkpoint=st.none() | st.builds(Checkpoint, lineages, st.text(max_size=9), st.integers(0, 2**63)),
    kept_checkpoints=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    history_from_generation=st.integers(0, 9),
    written_parts=st.lists(st.tuples(st.text(max_size=9), st.integers(-1, 15)), max_size=3).map(tuple),
    checkpoint_wanted=st.booleans(),
    immediate=st.booleans(),
    split_storage=st.booleans(),
    save_steps=st.integers(0, 1000),
    spare_why=st.text(max_size=9),
)


def tell(before: View | None, after: View) -> ViewUpdate:
    """Return what a member receives that knew `before`, having been through the wire."""
    change = view_delta(before, after)
    mine = (after.revision, after.known, after.draining, after.grace_s, 0, -1, 0, after.durable, (), after.spare_why)
    told = ViewUpdate(*mine, immediate=after.immediate, delta=change)
    return TOLD.decode(TOLD.encode(told))


@given(before=views, after=views)
def test_a_change_gives_the_view_back(before: View, after: View) -> None:
    assert apply_update(before, tell(before, after)) == after


@given(after=views)
def test_from_nothing_everything_is_told(after: View) -> None:
    assert apply_update(None, tell(None, after)) == after


@given(before=views, after=views)
def test_everything_may_be_told_to_a_member_that_knows_something_else(before: View, after: View) -> None:
    assert apply_update(before, tell(None, after)) == after


@given(before=views, after=views, other=views)
def test_a_change_is_never_built_on_another_revision(before: View, after: View, other: View) -> None:
    if other.revision != before.revision:
        with pytest.raises(BadInput, match="watch again from 0"):
            apply_update(other, tell(before, after))
    with pytest.raises(BadInput, match="watch again from 0"):
        apply_update(None, tell(before, after))


@pytest.mark.parametrize("items", [((0, 12),), ((-1, 0),), ((3, 2),)])
def test_ranks_that_no_member_has_are_refused(items: tuple[tuple[int, int] | str, ...]) -> None:
    before = crowd(12)
    news = tell(before, replace(before, revision=2))
    assert news.delta is not None
    wrong = replace(news, delta=replace(news.delta, holders=MemberRuns(1, items)))
    with pytest.raises(BadInput, match="name no members"):
        apply_update(before, wrong)


def test_a_world_we_do_not_have_cannot_be_kept() -> None:
    before = crowd(2)
    news = tell(before, replace(before, revision=2))
    assert news.delta is not None
    with pytest.raises(BadInput, match="generation 7"):
        apply_update(before, replace(news, delta=replace(news.delta, worlds=(7,))))


def test_weights_that_do_not_fit_are_refused_before_they_fill_the_memory() -> None:
    news = tell(None, crowd(2))
    assert news.delta is not None
    (new,) = news.delta.worlds
    assert not isinstance(new, int)
    wrong = replace(new, weights=((1, 10**15),))
    with pytest.raises(BadInput, match="2 members and 3 weights"):
        apply_update(None, replace(news, delta=replace(news.delta, worlds=(wrong,))))


@pytest.mark.parametrize("addresses", [(), ("a:1",), ("a:1", "b:1", "c:1")])
def test_as_many_addresses_as_names_or_none_at_all(addresses: tuple[str, ...]) -> None:
    news = tell(None, crowd(2))
    assert news.delta is not None
    (new,) = news.delta.worlds
    assert not isinstance(new, int)
    wrong = replace(new, addresses=addresses)
    with pytest.raises(BadInput, match=f"2 members are named in a world, with {len(addresses)} addresses"):
        apply_update(None, replace(news, delta=replace(news.delta, worlds=(wrong,))))


def test_a_key_for_peers_is_in_no_representation() -> None:
    told = replace(tell(None, crowd(2)), keys=(PeerKey(3, "5ec7e7"),))
    assert "5ec7e7" not in repr(told)
    assert TOLD.decode(TOLD.encode(told)).keys[0].key == "5ec7e7"


def test_an_answer_without_a_change_leaves_the_view_alone() -> None:
    with pytest.raises(BadInput, match="keep the current view"):
        apply_update(crowd(2), replace(tell(None, crowd(2)), delta=None))


# ------------------------------------------------------------------------------------------------ its size


def crowd(size: int, number: int = 1, revision: int = 1) -> View:
    names = tuple(MemberId(f"a{i // 8}-1.{i}") for i in range(size))
    addresses = tuple(f"10.0.{i // 250}.{i % 250}:7000" for i in range(size))
    world = World(number, WorldKind.PLANNED, names, (1,) * size, GENESIS, addresses=addresses, rollback_generation=1)
    all_names = frozenset(names)
    return View(
        revision,
        JobState.RUNNING,
        "",
        True,
        False,
        0.0,
        (world,),
        1,
        0,
        frozenset(),
        frozenset(),
        all_names,
        GENESIS,
        None,
    )


def size_of(change: ViewDelta) -> int:
    return len(Body(ViewDelta).encode(change))


def test_in_a_job_of_two_thousand_a_change_has_hundreds_of_bytes() -> None:
    before = crowd(2000)
    (first,) = before.worlds
    names, where = first.members[:700] + first.members[701:], first.addresses[:700] + first.addresses[701:]
    without_one = World(2, WorldKind.RECOVERY, names, (1,) * 1999, GENESIS, addresses=where)
    lost = replace(
        before, revision=2, worlds=(without_one,), gone_in_open_worlds=frozenset({first.members[700]}), sealed=1
    )
    more = (*where, "10.1.1.1:7000")
    newcomer = World(3, WorldKind.PLANNED, (*names, MemberId("new")), (1,) * 2000, GENESIS, addresses=more)
    grown = replace(lost, revision=3, worlds=(without_one, newcomer))
    assert size_of(view_delta(None, before)) > 20_000
    assert size_of(view_delta(before, lost)) < 750
    assert size_of(view_delta(lost, grown)) < 750
