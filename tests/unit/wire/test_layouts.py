"""A layout on its way to members: sent once, and named by its number after that."""

from dataclasses import replace

import pytest

from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from pliant.errors import BadInput
from pliant.wire.codec import decode_state, encode_state
from pliant.wire.views import apply_update, member_update, peer_keys, view_delta, world_positions
from unit.core.ps.fleet import A, B, Fleet

WORKER = MemberId("w")


def test_members_receive_the_layout_and_its_key() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    fleet.join(WORKER)
    job = fleet.it
    keys = peer_keys(job, lambda name, created_at, generation: f"key {generation} of {name} {created_at}")
    assert [key.generation for key in keys[WORKER]] == [fleet.layout.number]
    assert keys[A] == keys[WORKER]

    def update_after(before: object) -> object:
        mine = member_update(job, 7, WORKER, world_positions(job), keys, job.durable)
        return replace(mine, delta=view_delta(before, view_of(job, 7, WORKER)))  # type: ignore[arg-type]

    whole = update_after(None)
    view = apply_update(None, whole)  # type: ignore[arg-type]
    assert view == view_of(job, 7, WORKER)
    assert view.layout == fleet.layout
    later = update_after(view)
    assert later.delta.layout == fleet.layout.number  # type: ignore[attr-defined]
    assert apply_update(view, later) == view  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="watch again from 0"):
        apply_update(replace(view, layout=None), later)  # type: ignore[arg-type]


def test_a_job_with_servers_is_stored_and_read_again() -> None:
    fleet = Fleet()
    fleet.settle(A, B)
    assert decode_state(encode_state(fleet.it), type(fleet.it)) == fleet.it
