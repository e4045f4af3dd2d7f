"""The speed of a job at each size, and the cost of a change, folded from its events.

Only undisturbed stretches count: from one report to the next of the same world, with no change of the membership and no
pause in between. The first report after a change only begins a stretch. Seconds are those of the coordinator's clock
when it received the reports, so a stretch is never a part of a report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from pliant.core import messages as m
from pliant.core.accounting.pauses import SWITCHING
from pliant.core.messages import Event
from pliant.core.model.job import Job

WINDOW_S = 600.0  # of measured time at one size; older stretches count less and less
PAUSES_KEPT = 16
WORLDS_KEPT = 16
PAUSE_S = 5.0  # of a change, until the first one was reported

# Events after which a stretch goes on: they stop no member.
_HARMLESS = (
    m.TargetChanged,
    m.Granted,
    m.PriceChanged,
    m.Advised,
    m.WorkersPermitted,
    m.PermitReturned,
    m.AgentJoined,
    m.AgentReadied,
    m.SettingsChanged,
    m.CheckpointRequested,
    m.CheckpointPublished,
    m.PartWritten,
    m.StateChanged,
)


@dataclass(slots=True)
class SizePace:
    """The samples of undisturbed stretches at one size, and their seconds."""

    samples: float = 0.0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.samples / self.seconds

    def add(self, samples: float, seconds: float) -> None:
        """Add a stretch. Beyond `WINDOW_S` all that was measured before counts less."""
        kept = min(1.0, max(0.0, WINDOW_S - seconds) / self.seconds) if self.seconds else 1.0
        self.samples = self.samples * kept + samples
        self.seconds = self.seconds * kept + seconds


@dataclass(slots=True)
class JobPace:
    """Call `add` with the events of a job, in order, from any event on."""

    sizes: dict[int, SizePace] = field(default_factory=dict)
    size: int = 0  # of the current world; 0: unknown
    changed_at: float = 0.0  # when that world was entered
    now: float = 0.0  # the last report
    _pauses: list[float] = field(default_factory=list)
    _worlds: dict[int, int] = field(default_factory=dict)  # sizes by generation
    _began: tuple[int, float] | None = None  # the generation and the time of the report that begins a stretch

    @property
    def pause_s(self) -> float:
        """The time that no member trains at a planned change."""
        return median(self._pauses) if self._pauses else PAUSE_S

    @property
    def has_pauses(self) -> bool:
        """True once a planned change was reported."""
        return bool(self._pauses)

    @property
    def measured_s(self) -> float:
        """The undisturbed time at the current size."""
        return self.sizes[self.size].seconds if self.size in self.sizes else 0.0

    @property
    def speeds(self) -> tuple[tuple[int, float], ...]:
        """The measured speeds in samples a second, by size."""
        return self.speeds_over(0.0)

    def speeds_over(self, seconds: float) -> tuple[tuple[int, float], ...]:
        """Return the speeds at the sizes that were measured for so long."""
        return tuple(
            (size, each.speed)
            for size, each in sorted(self.sizes.items())
            if each.samples and each.seconds > 0 and each.seconds >= seconds
        )

    @classmethod
    def of(cls, job: Job) -> JobPace:
        """Begin with a job in whose world nothing was measured yet."""
        world = job.world(job.current)
        size = 0 if world is None else len(world.members)
        return cls(size=size, _worlds={} if world is None else {world.number: size})

    def add(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case m.StepsCommitted():
                self._committed(event)
            case m.WorldFormed(world=world):
                self._worlds[world.number] = len(world.members)
                self._worlds = dict([*self._worlds.items()][-WORLDS_KEPT:])
                self._began = None
            case m.WorldEntered(at=at, generation=generation):
                if generation in self._worlds:
                    self.size, self.changed_at = self._worlds[generation], at
                self._began = None
            case _:
                self._began = self._began if isinstance(event, _HARMLESS) else None

    def _committed(self, event: m.StepsCommitted) -> None:
        self._pauses += [each.seconds for each in event.pauses if each.kind == SWITCHING]
        self._pauses = self._pauses[-PAUSES_KEPT:]
        began, self.now = self._began, max(self.now, event.at)
        self._began = (event.generation, event.at)
        if began is None or event.pauses or began[0] != event.generation or event.at <= began[1]:
            return
        size = self._worlds.get(event.generation)
        if size is not None:
            samples = sum(line.samples for line in event.lines)
            self.sizes.setdefault(size, SizePace()).add(samples, event.at - began[1])
