"""Changed copies: equal to those of `dataclasses.replace`, and the original stays as it was."""

from dataclasses import fields, replace

import pytest

from pliant.core.model.copies import change
from pliant.core.model.job import Job, JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View, view_of
from pliant.core.supervisor import Supervisor
from pliant.core.tasks.model import TaskState, TaskTerms

JOB = Job("demo", JobSpec(1, 2, Target(2)), Target(2))
COPIED = (JOB, Supervisor(AgentId("a"), "1", 2), view_of(JOB, 7, MemberId("m")), TaskState(TaskTerms(100, 10)))


@pytest.mark.parametrize("value", COPIED, ids=lambda value: type(value).__name__)
def test_a_copy_without_a_change_is_equal_and_another_value(value: Job | Supervisor | View | TaskState) -> None:
    twin = change(value)
    assert twin == value
    assert twin is not value
    assert type(twin) is type(value)


@pytest.mark.parametrize("kind", [type(value) for value in COPIED])
def test_what_is_copied_as_a_dictionary_has_all_its_fields_there(kind: type[Job | Supervisor | View]) -> None:
    assert not hasattr(kind, "__slots__")
    assert not hasattr(kind, "__post_init__")
    value = next(each for each in COPIED if type(each) is kind)
    assert value.__dict__.keys() == {field.name for field in fields(value)}


def test_a_changed_copy_is_that_of_replace_and_the_original_stays() -> None:
    before = replace(JOB)
    assert change(JOB, why="paused", attempt=2) == replace(JOB, why="paused", attempt=2)
    assert before == JOB
