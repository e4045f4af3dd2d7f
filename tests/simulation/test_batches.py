"""Schedules whose script changes the batch: under all faults every history has the same changes (ADR 0051)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.member import signals
from pliant_sim.live.world import setting_for
from pliant_sim.run import run_seed

BATCHES = ((2, 20), (5, 13), (9, 31))
SEEDS = (1_000, 1_001, 1_002, 1_003, 1_004, 1_005, 1_006, 1_007, 1_009, 1_011, 1_014, 1_019, 1_024, 1_026)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_changing_batch_is_exactly_once_under_faults(seed: int) -> None:
    result = run_seed(seed, batches=BATCHES)
    assert result.complaints == ()
    assert result.steps == replace(setting_for(seed), batches=BATCHES).last_step


def test_joiners_that_do_not_know_the_batches_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(*about: Any) -> signals.Admission:
        return signals.Admission(*about[:3])

    monkeypatch.setattr("pliant.core.member.common.Admission", untold)
    assert any(run_seed(seed, batches=BATCHES).complaints for seed in SEEDS[:5])
