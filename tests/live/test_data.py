"""A worker is killed and replaced in the middle of an epoch: each kind of data keeps its own promise."""

from pathlib import Path
from typing import Any

import pytest

from live.crowd import Crowd, ForkServer
from live.plain import plain
from live.scenes import Plan

SMALL: dict[str, Any] = {"samples": 45, "batch": 8}
WHOLE = "225 samples in 30 committed steps, 0 lost, 0 repeated"
PROMISES = {
    "sampler": (
        "every position of the order used exactly once",
        "220 samples in 30 committed steps, 0 lost, 0 repeated",
    ),
    "shards": ("every sample used exactly once", WHOLE),
    "stream": ("every item of the stream, by its number, used exactly once", WHOLE),
}


def test_a_loss_by_words_is_that_of_one_worker_through_a_kill(home: Path, fork_server: ForkServer) -> None:
    """The parts of a step have other numbers of words on every member, and some none."""
    plan: dict[str, Any] = {**SMALL, "source": "sentences", "epochs": 5}
    with Crowd(home, fork_server, target=3, micro_batch=2, **plan) as crowd:
        a, b = crowd.start(2)
        victim = crowd.join(kill={"backward": 8})
        assert victim.ended() == -9
        a.in_world_of(2)
        ends = crowd.finished(a, b)
        weights, losses = plain(Plan("", **plan))
        assert ends[0]["weights"] == pytest.approx(weights, abs=1e-10)
        told = {each["step"]: each["loss"] for each in a.steps}
        assert [told[step] for step in sorted(told)] == pytest.approx(losses[min(told) - 1 :], abs=1e-10)


@pytest.mark.parametrize(
    ("source", "num_workers"),
    [("sampler", 0), ("shards", 2), ("stream", 0), ("stream", 1)],
)
def test_through_a_kill(source: str, num_workers: int, home: Path, fork_server: ForkServer) -> None:
    plan: dict[str, Any] = {**SMALL, "source": source, "epochs": 10 if source == "sampler" else 5}
    # A step takes long enough for the replacement to start within the same job on a busy machine.
    with Crowd(home, fork_server, target=2, num_workers=num_workers, pace_s=0.3, **plan) as crowd:
        (survivor,) = crowd.start(1)
        victim = crowd.join(kill={"backward": 8})
        assert victim.ended() == -9
        survivor.in_world_of(1)
        replacement = crowd.join()
        survivor.in_world_of(2)
        ends = crowd.finished(survivor, replacement)
        assert ends[0]["weights"] == pytest.approx(plain(Plan("", **plan))[0], abs=1e-10)
        assert crowd.audit().out.splitlines()[:2] == [f"live: {PROMISES[source][0]}", PROMISES[source][1]]
