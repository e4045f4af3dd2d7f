"""Lines of `pliant run`: the last ones, with the step, the checkpoint and what to do next, and its reminders."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import with_changes_of
from pliant.core.messages import CheckpointPublished, Event, MemberJoined, StepsCommitted, WorldFormed
from pliant.core.messages.describe import describe_recomputed, describe_state
from pliant.core.model.job import JobState
from pliant.core.model.world import WorldKind


@dataclass(slots=True)
class Progress:
    """The committed step and the newest checkpoint of a job, as of the last event fed.

    `total_steps` is None as long as no worker has joined: the job is not live, and its script saves by itself.
    """

    step: int = 0
    total_steps: int | None = None
    saved_step: int | None = None
    _grid: Grid | None = field(default=None, compare=False)

    def feed(self, event: Event) -> None:
        match event:
            case StepsCommitted(lines=lines):
                self.step = lines[-1].lineage.step
                if self._grid is not None and any(line.next_batch for line in lines):
                    self._count_steps(with_changes_of(self._grid, lines))
            case WorldFormed(world=world) if world.kind is WorldKind.ROLLBACK:
                self.step = world.base.step
                if self._grid is not None:
                    self._count_steps(self._grid.up_to(self.step))
            case MemberJoined(terms=terms):
                self._count_steps(terms.grid)
            case CheckpointPublished(checkpoint=checkpoint):
                self.saved_step = checkpoint.lineage.step
            case _:
                pass

    def _count_steps(self, grid: Grid) -> None:
        self._grid = grid
        self.total_steps = grid.total_steps


def describe_closing(
    job: str, state: JobState, progress: Progress, duration_s: float, storage: str, *, all_left: bool, asked: str = ""
) -> list[str]:
    """Return the closing lines of a job. `all_left`: no other machine goes on with it.

    `asked` is the reason that came with the request to leave, if this agent was asked to.
    """
    took = describe_duration(duration_s)
    if not state.ended and not all_left:
        why = f": it was asked to leave ({asked})" if asked else ""
        return [f"this machine left {job} after {took}{why}; the job goes on without it"]
    stopped = describe_state(state).removeprefix("is ") if state.ended else "stopped"
    if progress.total_steps is None:
        again = [] if state is JobState.FINISHED else [_next(state, "the same command starts the script again")]
        return [f"{job} {stopped} after {took}", *again]
    saved = "no checkpoint" if progress.saved_step is None else f"checkpoint: step {progress.saved_step} in {storage}"
    head = f"{job} {stopped} after {took} at step {progress.step} of {progress.total_steps}; {saved}"
    if state is JobState.FINISHED:
        return [head] if progress.saved_step is None else [head, f"next: {_EXPORT.format(job=job)}"]
    last = _next(state, "start it with the same command")
    return [head, f"All workers have left. {_describe_resume(progress)}", last]


def _next(state: JobState, otherwise: str) -> str:
    return f"next: {'fix the error and run it again' if state is JobState.FAILED else otherwise}"


_EXPORT = "`pliant export {job} --out model.pt` writes the model to a file"


def _describe_resume(progress: Progress) -> str:
    base = progress.saved_step or 0
    lost = progress.step - base
    if lost <= 0:
        return f"The next start resumes at step {progress.step}; nothing is lost."
    return f"The next start resumes at step {base} ({describe_recomputed(lost)})."


def describe_wait(why: str, workers: int, joined: int) -> str:
    """Return the reminder that nothing is trained: why, and how many workers run or start on this machine."""
    if workers > joined:
        starting = workers - joined
        return f"{why.partition(';')[0]}; {starting} {'is' if starting == 1 else 'are'} starting here"
    return f"{why}; {workers} {'runs' if workers == 1 else 'run'} here"


def describe_away(url: str, since: float) -> str:
    """Return the reminder about a coordinator that does not answer, and what to do about it."""
    return (
        f"the coordinator at {url} has not answered since {_time_of_day(since)}. Start `pliant run` there again; "
        "this agent reconnects by itself"
    )


def describe_closing_away(job: str, since: float) -> str:
    """Return the last line of an agent that ends without its coordinator."""
    return (
        f"this machine left {job}. Its coordinator has not answered since {_time_of_day(since)} and does not know yet; "
        "`pliant run` on its machine resumes the job"
    )


def _time_of_day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S")


def describe_duration(seconds: float) -> str:
    """Return a duration such as `27 s`, `5 min 8 s` or `2 h 3 min`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"
