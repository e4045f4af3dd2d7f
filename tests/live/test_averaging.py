"""Model averaging with real members: each has a model of its own, and the centre is the state of the job."""

from pathlib import Path

from live.crowd import Crowd, ForkServer


def test_the_centre_is_the_same_everywhere_after_a_join_and_a_kill(home: Path, fork_server: ForkServer) -> None:
    """The kill strikes when the others keep gradients of the step, and the joiner starts at the centre."""
    with Crowd(home, fork_server, target=2, size_min=1, averages=True, samples=45, batch=8, epochs=10) as crowd:
        a, b = crowd.start(2)
        a.in_world_of(2)
        crowd.resize(3)
        victim = crowd.join(kill={"backward": 8})
        assert victim.ended() == -9
        a.in_world_of(2)
        c = crowd.join()
        c.in_world_of(3)
        ends = crowd.finished(a, b, c)
        assert crowd.audit().code == 0
    assert all(end["distance"] > 1e-4 for end in ends)
    assert len({end["distance"] for end in ends}) == 3
