"""Submissions: which are accepted, and how each goes on."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.messages.rejection import Code, Rejection
from pliant.core.model.job import Mode
from pliant.core.submissions import (
    OPEN_MAX,
    OVER_KEPT,
    StoredSubmission,
    Submission,
    Submissions,
    SubmissionState,
    accept,
    allows_image,
    bad_submission,
    report,
    stop,
    with_entry,
)

WANTED = Submission("digits", "trainer:1", 1, 8, ("pliant", "run", "train.py"), target=2)


def submitted(*tasks: str) -> Submissions:
    known = Submissions()
    for task in tasks:
        entry = accept(known, replace(WANTED, task=task), "t1", 5.0)
        assert isinstance(entry, StoredSubmission)
        known = with_entry(known, entry)
    return known


def rejected(answer: StoredSubmission | Rejection) -> Rejection:
    assert isinstance(answer, Rejection)
    return answer


def moved(known: Submissions, number: int, state: SubmissionState) -> Submissions:
    entry = report(known, number, state, "so", "ns.job")
    assert isinstance(entry, StoredSubmission)
    return with_entry(known, entry)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task": "Digits"}, "task must have"),
        ({"task": "x" * 41}, "task must have"),
        ({"task": "a-"}, "task must have"),
        ({"image": "a b"}, "image must be"),
        ({"image": "i" * 256}, "image must be"),
        ({"claim": "Claim!"}, "claim must be"),
        ({"size_min": 0}, "workers must be MIN:MAX"),
        ({"size_min": 9}, "workers must be MIN:MAX"),
        ({"size_max": 4097}, "workers must be MIN:MAX"),
        ({"target": 9}, "target must lie between 1 and 8"),
        ({"servers": 257}, "parameter servers"),
        ({"servers": 1, "mode": Mode.LIVE}, "in a cluster a live job has no parameter servers"),
        ({"processes": 65}, "1 to 64 processes"),
        ({"environment": (("1A", "x"),)}, "cannot be set"),
        ({"environment": (("A", "\0"),)}, "cannot be set"),
        ({"environment": (("PLIANT_TOKEN_FILE", "x"),)}, "the operator sets"),
        ({"environment": (("A", "1"), ("A", "2"))}, "given once"),
        ({"limits": (("memory", "lots"),)}, "not the limit of a resource"),
        ({"limits": (("-", "1"),)}, "not the limit of a resource"),
        ({"command": ("a\0",)}, "zero byte"),
        ({"command": ("x" * 4097,)}, "4096 characters together"),
    ],
)
def test_a_submission_that_cannot_work_is_refused_with_the_reason(change: dict[str, Any], what: str) -> None:
    wanted = replace(WANTED, **change)
    assert what in bad_submission(wanted)
    answer = rejected(accept(Submissions(), wanted, "t1", 0.0))
    assert (answer.code, what in answer.why) == (Code.BAD, True)


def test_all_choices_together_are_accepted() -> None:
    limits = (("nvidia.com/gpu", "1"), ("memory", "8Gi"), ("cpu", "500m"))
    chosen = replace(WANTED, servers=2, processes=4, claim="saves", limits=limits, environment=(("A", "b"),))
    assert bad_submission(chosen) == ""


def test_a_pattern_allows_whole_names_only() -> None:
    assert allows_image(["other:1", "team/*:2"], "team/a/b:2")
    assert not allows_image(["team/*:2"], "team/a:22")
    assert not allows_image(["trainer:1"], "trainerx1")
    assert not allows_image([], "trainer:1")


def test_the_same_request_again_is_the_same_submission() -> None:
    known = submitted("digits")
    assert accept(known, WANTED, "t1", 9.0) == known.entries[0]


def test_a_name_in_use_is_refused_without_its_settings() -> None:
    known = submitted("digits")
    for answer in (accept(known, replace(WANTED, image="b:2"), "t1", 9.0), accept(known, WANTED, "t2", 9.0)):
        assert rejected(answer) == Rejection(
            Code.EXISTS, "there is another submission with task digits; choose another name"
        )


def test_a_name_is_free_again_after_the_end_and_gets_another_number() -> None:
    known = moved(submitted("digits"), 1, SubmissionState.REFUSED)
    entry = accept(known, WANTED, "t2", 9.0)
    assert isinstance(entry, StoredSubmission)
    assert entry.number == 2
    assert with_entry(known, entry).find("digits") == entry


def test_there_is_a_maximum_of_open_submissions() -> None:
    known = submitted(*(f"t{n}" for n in range(OPEN_MAX)))
    assert "the maximum" in rejected(accept(known, WANTED, "t1", 0.0)).why
    assert isinstance(accept(moved(known, 1, SubmissionState.REFUSED), WANTED, "t1", 0.0), StoredSubmission)


def test_only_the_newest_of_those_that_are_over_are_kept() -> None:
    known = submitted(*(f"t{n}" for n in range(OVER_KEPT + 2)))
    for number in range(1, OVER_KEPT + 2):
        known = moved(known, number, SubmissionState.REFUSED)
    numbers = [entry.number for entry in known.entries]
    assert numbers == list(range(2, OVER_KEPT + 3))
    assert known.last == OVER_KEPT + 2


def test_only_its_own_token_or_an_admin_stops_a_submission() -> None:
    known = submitted("digits")
    assert rejected(stop(known, "digits", "t2", "enough")).code is Code.EXISTS
    assert rejected(stop(known, "other", "t1", "enough")).code is Code.UNKNOWN
    entry = stop(known, "digits", "t1", "enough")
    assert isinstance(entry, StoredSubmission)
    assert entry.state is SubmissionState.STOPPING
    assert stop(known, "digits", None, "enough") == entry
    again = with_entry(known, entry)
    assert stop(again, "digits", "t1", "enough") == entry
    over = moved(again, 1, SubmissionState.ENDED)
    assert stop(over, "digits", "t1", "enough") == over.entries[0]


def test_a_submission_goes_from_accepted_over_created_to_ended() -> None:
    known = moved(submitted("digits"), 1, SubmissionState.CREATED)
    assert (known.entries[0].why, known.entries[0].job) == ("so", "ns.job")
    assert report(known, 1, SubmissionState.CREATED, "other words", "") == known.entries[0]
    assert moved(known, 1, SubmissionState.ENDED).entries[0].state.is_over


@pytest.mark.parametrize("late", [SubmissionState.ACCEPTED, SubmissionState.CREATED, SubmissionState.REFUSED])
def test_a_late_report_does_not_revive_a_submission(late: SubmissionState) -> None:
    known = submitted("digits")
    entry = stop(known, "digits", "t1", "enough")
    assert isinstance(entry, StoredSubmission)
    over = moved(with_entry(known, entry), 1, SubmissionState.ENDED)
    assert rejected(report(over, 1, late, "", "")).code is Code.PAST
    assert rejected(report(over, 7, late, "", "")).code is Code.UNKNOWN


def test_the_target_may_be_the_least_or_the_most() -> None:
    assert [bad_submission(replace(WANTED, target=size)) for size in (1, 8)] == ["", ""]
