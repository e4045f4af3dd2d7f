"""Work that a coordinator does beside its requests goes on after a failure."""

import asyncio
import logging
from pathlib import Path

import pytest

from pliant.coordinator import server
from pliant.coordinator.server import Coordinator
from pliant.coordinator.service.pump import UNASKED_LOOKUPS_MAX
from pliant.errors import BadInput
from pliant.stores.memory import MemoryStore


def test_tokens_are_read_again_after_a_record_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "REFRESH_S", 0.001)
    coordinator = Coordinator(MemoryStore("unit"), tmp_path / "token")
    calls = 0

    async def play() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def refresh() -> None:
            nonlocal calls
            calls += 1
            if calls <= 3:
                raise BadInput("There is no field 'owner'.")
            loop.call_soon_threadsafe(done.set)

        monkeypatch.setattr(coordinator.keyring, "refresh", refresh)
        refreshing = asyncio.create_task(coordinator._refresh_tokens())
        await asyncio.wait_for(done.wait(), 60.0)
        refreshing.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    coordinator._reads.close()
    assert caplog.text.count("There is no field 'owner'.") == 1  # reported once


def test_a_list_of_tokens_has_few_ended_jobs_loaded_at_once(tmp_path: Path) -> None:
    coordinator = Coordinator(MemoryStore("unit"), tmp_path / "token")
    service = coordinator.service.service
    service.pump(0.0)
    for number in range(1000):
        assert not coordinator._has_ended(f"job-{number}")
    assert len(service._lookups) == UNASKED_LOOKUPS_MAX
    assert service.look_up("asked-for", "ticket")
    coordinator._reads.close()
