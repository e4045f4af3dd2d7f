"""How a `pliant run` ends: its exit status, and its last words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pliant.agent.coordinator.event_follower import Story
from pliant.core.model.job import JobState
from pliant.errors import PliantError

SIGNALLED = 128  # a shell adds the signal's number to it


@dataclass(slots=True)
class Ends:
    """What decides over the exit status, besides how the job ended."""

    signalled: int = 0
    hurried: bool = False  # a second signal came
    gave_up: str = ""  # why we did, though nobody wanted us to end
    early: int = 0  # workers in a row that ended before they had joined
    after: list[str] = field(default_factory=list)  # workers that failed after the job's end


def conclude(job: str, story: Story, ends: Ends, first_failure: str, say: Callable[[str], None], *, own: bool) -> int:
    """Call when nothing runs any more. PliantError if the job, or what came after it, went wrong.

    `own` says that its coordinator ends with us, so that nobody goes on with it.
    """
    if story.state is JobState.FINISHED and not ends.after:
        return 0  # also if somebody wanted it to end: it did not have to
    if ends.signalled:
        if not story.state.ended:
            say(f"{job} is {story.state.value}: {story.why}; the same command goes on with it")
        return SIGNALLED + ends.signalled
    if not story.state.ended and ends.gave_up:
        raise PliantError(ends.gave_up)
    if not story.state.ended and own:
        raise PliantError(
            f"{job} is {story.state.value}: this agent was asked to leave; the same command goes on with it."
        )
    if not story.state.ended:
        say(f"{job} goes on without this agent, which was asked to leave")
        return 0
    if story.state is not JobState.FINISHED:
        first = f"\n{first_failure}" if first_failure else ""
        raise PliantError(f"{job} is {story.state.value}: {story.why}{first}")
    raise PliantError(f"{job} is finished, but after it: {'; '.join(ends.after)}.")
