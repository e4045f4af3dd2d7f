"""Bugs planted in the TCP group: the checks of the contract find each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait

import numpy as np
import pytest

from contract.group.worlds import KINDS, Array, drawn, in_order, wired_world
from e2e.running import wait_for
from pliant.train.group import links, tcp
from pliant.train.group.tcp import TcpGroup

pytestmark = pytest.mark.timeout(120)

Plant = Callable[[pytest.MonkeyPatch], None]


def adds_its_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(_group: TcpGroup, mine: Array, others: Sequence[Array]) -> None:
        for other in others:
            np.add(mine, other, out=mine)

    monkeypatch.setattr(TcpGroup, "_add", add)


def leaves_out_the_last_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TcpGroup._add

    def add(group: TcpGroup, mine: Array, others: Sequence[Array]) -> None:
        if len(others) > 1 and group.rank == 0:
            others = others[:-1]
        real(group, mine, others)

    monkeypatch.setattr(TcpGroup, "_add", add)


@pytest.mark.parametrize("small", [0, 1 << 30])
@pytest.mark.parametrize("plant", [adds_its_own_first, leaves_out_the_last_rank])
def test_a_wrong_sum_is_found(plant: Plant, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = drawn(3, 70_000, "float32")
    monkeypatch.setattr(tcp, "SMALL", small)
    with wired_world(KINDS[0], 3) as ranks:
        assert all(each.tobytes() == in_order(arrays).tobytes() for each in ranks.sums(arrays))
        plant(monkeypatch)
        assert any(each.tobytes() != in_order(arrays).tobytes() for each in ranks.sums(arrays))


def test_a_group_that_is_broken_in_name_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = links.Link.shut_down
    monkeypatch.setattr(links.Link, "shut_down", lambda _link: None)
    with wired_world(KINDS[0], 2) as ranks:
        waiting = ranks.start(lambda group, _rank: group.gather(b""), [0])
        group = ranks.groups[0]
        assert isinstance(group, TcpGroup)
        wait_for(lambda: group._runner, "the operation to begin")
        group.break_off()
        assert not wait(waiting, timeout=0.5).done
        for link in group._links:
            real(link)
        assert wait(waiting, timeout=30.0).done
