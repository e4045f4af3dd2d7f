"""Planted bugs of jobs on several machines and with several coordinators."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

CLUSTERS = (
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
)
