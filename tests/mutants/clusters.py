"""Planted bugs of jobs on several machines and with several coordinators."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

CLUSTERS = (
    Planted(
        "a frozen leader holds its members",
        "P1, P5",
        "A renewal waits for a frozen coordinator as long as a lease lasts, and a watch stays where it was opened.",
        (
            Edit(
                "core/endpoints.py",
                "    return min(ANSWER_S, lease_ttl_s / (RENEWAL_LIMITS_PER_LEASE if endpoints > 1 else RENEWALS_PER_LEASE))",
                "    return ANSWER_S",
            ),
            Edit(
                "core/endpoints.py",
                "        moved_at=now if moved else known.moved_at,\n",
                "        moved_at=known.moved_at if moved else known.moved_at,\n",
            ),
        ),
    ),
    Planted(
        "members by age, workers by agent",
        "P8",
        "After a shrink, members train on agents where no worker is wanted, and others start spares for ever.",
        (
            Edit(
                "core/job/assignment.py",
                "        usable.sort(key=lambda m: m.id in beyond)\n",
                "        pass\n",
            ),
        ),
    ),
    Planted(
        "an agent cannot leave",
        "P2",
        "An agent of a live job that is asked to leave replaces its workers and stays.",
        (
            Edit(
                "core/job/launches.py",
                "(job.is_live and not command.leave)",
                "job.is_live",
            ),
        ),
    ),
    Planted(
        "a hold by another machine's clock",
        "P1",
        "A coordinator compares its own clock with the end that another one on another machine computed for its hold.",
        (
            Edit(
                "stores/sightings.py",
                "        return seen.seen_s + ttl_s\n",
                "        return renewal[1]\n",
            ),
        ),
    ),
    Planted(
        "a leader that no member reaches keeps its hold",
        "P5",
        "A standby that members reach waits for half a lease before the leader, which receives nothing, leaves its hold.",
        (
            Edit(
                "coordinator/service/leader.py",
                "        called = (CALLED_NAME,) if is_quiet else ()\n",
                "        called: tuple[str, ...] = ()\n",
            ),
        ),
    ),
    Planted(
        "a new leader takes slots for free",
        "grants",
        "A new leader grants slots at once in which workers of an earlier and larger grant still start.",
        (
            Edit(
                "coordinator/service/scheduler.py",
                "is_counting=now - self._led_since < SETTLE_S",
                "is_counting=now < self._led_since",
            ),
        ),
    ),
    Planted(
        "an ended job has no processes",
        "grants",
        "The slots of a job are granted to others at its end, while its processes still save and exit.",
        (
            Edit(
                "coordinator/service/scheduler.py",
                "Leaving(name, len(workers)) for (name, _), workers in self._remains.items())",
                "Leaving(name, 0) for name, _ in self._remains)",
            ),
        ),
    ),
    Planted(
        "a cost limit without a reserve",
        "cost",
        "A job goes on until its cost limit is spent, and its workers are paid for while they save and leave.",
        (
            Edit(
                "core/allocate/cost.py",
                "    seconds = RESERVE_S if demand.granted else RUNWAY_S + RESERVE_S\n",
                "    seconds = 0.0 if demand.granted else RUNWAY_S + RESERVE_S\n",
            ),
        ),
    ),
    Planted(
        "a stop that the leader takes back",
        "cost",
        "A job that has reached its cost limit keeps its workers, because they are no fewer than its minimum.",
        (
            Edit(
                "coordinator/service/scheduler.py",
                " and found.reason not in STOPS",
                "",
            ),
        ),
    ),
    Planted(
        "members without a grant stay",
        "cost",
        "The members of a job whose grant was withdrawn train on, and cost more.",
        (
            Edit(
                "core/job/next_world.py",
                "    if job.spec.queue and not job.granted and (leaving := _without_grant(job, now)):\n        return leaving\n",
                "",
            ),
        ),
    ),
    Planted(
        "a price that counts from the last change",
        "cost",
        "A new price is charged for the time before it, since the workers changed last.",
        (
            Edit(
                "core/job/evolve.py",
                "    if not job.price or isinstance(event, m.StepsCommitted):\n",
                "    if not job.price or isinstance(event, m.StepsCommitted | m.PriceChanged):\n",
            ),
        ),
    ),
    Planted(
        "a deadline that cannot be met",
        "deadlines",
        "A job takes workers for its deadline although it would miss it even with all that it can have.",
        (
            Edit(
                "core/allocate/deadline.py",
                "            return size\n    return 0\n",
                "            return size\n    return sizes[-1]\n",
            ),
        ),
    ),
    Planted(
        "a deadline that costs another one",
        "deadlines",
        "A job that would miss its deadline takes workers that another one of its priority needs for its own.",
        (
            Edit(
                "core/allocate/plan.py",
                "        return self.needed if self.at >= self.needed else 0\n",
                "        return 0\n",
            ),
        ),
    ),
    Planted(
        "a part of what a deadline needs",
        "deadlines",
        "A job that cannot get all that its deadline needs takes the rest from others, and is late anyway.",
        (
            Edit(
                "core/allocate/plan.py",
                "        if taker.at >= taker.needed:\n            free = left\n        else:\n            shares.restore(lines, start)\n",
                "        free = left\n",
            ),
        ),
    ),
    Planted(
        "a deadline at the edge",
        "deadlines",
        "A job whose end is close to its deadline meets it and misses it in turn, with an event each time.",
        (
            Edit(
                "core/allocate/deadline.py",
                "size == kept and not deadline.was_missed",
                "size == kept",
            ),
        ),
    ),
    Planted(
        "grants that follow every report",
        "grants",
        "Measured speeds are used as they are, so jobs take workers from one another as the reports vary.",
        (
            Edit(
                "core/allocate/measured.py",
                "    return mean if kept is None or not kept / step <= mean <= kept * step else kept\n",
                "    return mean\n",
            ),
        ),
    ),
    Planted(
        "a division before it is measured",
        "grants",
        "A new leader divides the pool again before it has measured the jobs that it finds.",
        (
            Edit(
                "core/allocate/measured.py",
                "is_measured_anew=is_inherited and facts is not None and not measured.speeds",
                "is_measured_anew=False",
            ),
        ),
    ),
    Planted(
        "a hold for jobs of its own",
        "grants",
        "A leader keeps the sizes of jobs that it has started itself, as if another one had measured them.",
        (
            Edit(
                "coordinator/service/scheduler.py",
                "is_inherited = key in (self._inherited or ()) and now",
                "is_inherited = bool(job.granted) and now",
            ),
        ),
    ),
    Planted(
        "a cut that lets a job take more",
        "grants",
        "A job that has just changed takes more workers when a smaller pool cuts its grant.",
        (
            Edit(
                "core/allocate/plan.py",
                "        return self.granted < 0 or not (self.stays or self.demand.is_measured_anew)\n",
                "        return self.is_changing or not (self.stays or self.demand.is_measured_anew)\n",
            ),
        ),
    ),
    Planted(
        "growth before a start",
        "grants",
        "Slots that were released for a job that starts go to a running job that is worth more by then.",
        (
            Edit(
                "core/allocate/grants.py",
                "taken[name], free - minimums - owed)\n",
                "taken[name], free - owed)\n",
            ),
        ),
    ),
    Planted(
        "the speeds of the attempt before",
        "grants",
        "A job that is started again is divided by the speeds of the attempt before.",
        (
            Edit(
                "coordinator/service/scheduler.py",
                "        before, pace = self._measured.get(key, NOTHING), self.paces.get(key[0])\n",
                "        found = [each for (name, _), each in self._measured.items() if name == key[0]]\n"
                "        before, pace = found[0] if found else NOTHING, self.paces.get(key[0])\n",
            ),
        ),
    ),
    Planted(
        "remaining time that counts for nothing",
        "grants",
        "The coordinator leaves the remaining samples out, so jobs near their end get no more than others.",
        (
            Edit(
                "core/allocate/measured.py",
                "        left=None if facts is None else facts.left,\n",
                "        left=None,\n",
            ),
        ),
    ),
    Planted(
        "a replacement beside its predecessor",
        "grants",
        "A job in a queue starts the replacement of a draining worker early, beyond its grant.",
        (
            Edit(
                "core/job/assignment.py",
                "room = job.granted - len(job.occupants)",
                "room = job.granted - len(job.occupants) + sum(each.draining for each in job.members.values())",
            ),
        ),
    ),
)
