import builtins
from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.cli.audit import command as module
from pliant.cli.audit.command import LedgerHistory
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, LedgerLine, make_line, slot_digest
from pliant.core.data.sample_order import Order
from pliant.core.model.job import JobSpec, JobState, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import WorldKind
from unit.cli.program import Done, Running
from unit.core.build import GRID, NOW, TERMS, A, B, C, lines, member, world

Pliant = Callable[..., Done]
ONE = MemberId("a.1")


def trained(running: Running, job: str, committed: tuple[LedgerLine, ...], terms: Terms = TERMS) -> None:
    """A job of one member that reported these lines."""
    with running.client() as client:
        client.send(job, m.Create(job, JobSpec(1, 2, Target(1))))
        client.send(job, m.Join(ONE, AgentId("a"), terms))
        client.send(job, m.Report(ONE, 0, 1, committed, frozenset({ONE})))


def digests(step: int, samples: Callable[[int, range], tuple[int, ...]], slots: range) -> int:
    epoch = GRID.cursor(step).epoch
    return sum(slot_digest(step, slot, samples(epoch, GRID.slot(step, slot))) for slot in slots) % 2**64


def other_lines(samples: Callable[[int, range], tuple[int, ...]], count: int) -> tuple[LedgerLine, ...]:
    """Return what honest members write who read other samples than the canonical order has."""
    head, made = GENESIS, []
    for step in range(1, count + 1):
        digest = digests(step, samples, range(GRID.slots))
        made.append(make_line(head, 1, step, GRID.cursor(step), GRID.size(step), digest))
        head = made[-1].lineage
    return tuple(made)


def without_slot(step: int, slot: int) -> LedgerLine:
    order = Order(TERMS.seed, GRID.samples)
    slots = [each for each in range(GRID.slots) if each != slot]
    digest = sum(digests(step, order.take, range(each, each + 1)) for each in slots) % 2**64
    return make_line(GENESIS, 1, step, GRID.cursor(step), GRID.size(step), digest)


def test_a_job_that_is_finished_is_audited_to_its_end(running: Running, pliant: Pliant) -> None:
    trained(running, "whole", lines(GENESIS, 1, 12))
    done = pliant("audit", "whole")
    assert (done.code, done.err) == (0, "")
    assert done.out == "whole: every sample used exactly once\n120 samples in 12 committed steps, 0 lost, 0 repeated\n"
    assert pliant("audit", "whole", "--json").json == {
        "ok": True,
        "samples": 120,
        "lost": 0,
        "repeated": 0,
        "steps": 12,
        "rolled_back": 0,
        "problems": [],
        "order": "shuffled",
        "promise": "every sample used exactly once",
    }


def test_a_job_that_runs_is_audited_as_far_as_it_has_come(running: Running, pliant: Pliant) -> None:
    trained(running, "half", lines(GENESIS, 1, 7))
    found = pliant("audit", "half", "--json").json
    assert (found["ok"], found["samples"], found["steps"]) == (True, 70, 7)


def test_a_slot_that_was_left_out_is_named_and_ends_with_1(running: Running, pliant: Pliant) -> None:
    trained(running, "short", (without_slot(1, 2),))
    done = pliant("audit", "short")
    assert done.code == 1
    assert done.out.startswith("short: problems found\n10 samples in 1 committed steps, 2 lost, 0 repeated\n")
    assert "- step 1: slots 2 to 2" in done.out
    found = pliant("audit", "short", "--json")
    assert (found.code, found.json["ok"], found.json["lost"]) == (1, False, len(GRID.slot(1, 2)))


def test_the_data_s_own_order_is_known(running: Running, pliant: Pliant) -> None:
    terms = replace(TERMS, extra=(("order", "sequential"),))
    trained(running, "plain", other_lines(lambda _, positions: tuple(positions), 12), terms)
    found = pliant("audit", "plain", "--json").json
    assert (found["ok"], found["order"], found["steps"]) == (True, "sequential", 12)
    trained(running, "mixed", lines(GENESIS, 1, 1), terms)
    assert pliant("audit", "mixed", "--json").json["lost"] == 10


@pytest.mark.parametrize("kind", ["function", "sampler"])
def test_of_an_order_that_user_code_draws_the_rest_is_checked_and_that_is_said(
    kind: str, running: Running, pliant: Pliant
) -> None:
    terms = replace(TERMS, extra=(("order", f"{kind} 12ab"), ("model", "x")))
    trained(running, f"own-{kind}", other_lines(lambda _, positions: tuple(59 - each for each in positions), 12), terms)
    done = pliant("audit", f"own-{kind}")
    assert done.code == 0
    assert done.out == (
        f"own-{kind}: every position of the order used exactly once\n"
        "120 samples in 12 committed steps, 0 lost, 0 repeated\n"
        f"The order comes from a {kind} in the script and may repeat samples or leave some out. It cannot be "
        "recomputed here: the workers compared each step with it before they applied the step. The hash chain, the "
        "steps and the counts were checked here.\n"
    )
    assert pliant("audit", f"own-{kind}", "--json").json["order"] == kind
    wrong = make_line(GENESIS, 1, 1, GRID.cursor(1), GRID.size(1) - 3, 5)
    trained(running, f"few-{kind}", (wrong,), terms)
    assert pliant("audit", f"few-{kind}", "--json").json["lost"] == 3


def test_of_shards_the_rest_is_checked_and_that_is_said(running: Running, pliant: Pliant) -> None:
    made = other_lines(lambda _, positions: tuple(59 - each for each in positions), 12)
    trained(running, "shards", made, replace(TERMS, extra=(("order", "shards 12ab"),)))
    assert pliant("audit", "shards").out == (
        "shards: every sample used exactly once\n120 samples in 12 committed steps, 0 lost, 0 repeated\n"
        "The order follows the shards of the data. It cannot be recomputed here: the workers compared each step with "
        "it before they applied the step. The hash chain, the steps and the counts were checked here.\n"
    )
    trained(running, "part", made, replace(TERMS, extra=(("order", "shards 12ab"), ("data", "90 samples"))))
    out = pliant("audit", "part").out
    assert out.startswith("part: every position of the order used exactly once\n")
    assert (
        "Each epoch takes 60 samples of passes over 90 samples, from where the epoch before it ended. The order" in out
    )


def test_the_items_of_a_stream_are_audited_by_their_numbers(running: Running, pliant: Pliant) -> None:
    terms = replace(TERMS, extra=(("order", "stream 12ab"),))
    trained(running, "stream", other_lines(lambda _, positions: tuple(positions), 12), terms)
    done = pliant("audit", "stream")
    assert (done.code, done.out) == (
        0,
        (
            "stream: every item of the stream, by its number, used exactly once\n"
            "120 samples in 12 committed steps, 0 lost, 0 repeated\n"
            "Items are numbered as the stream yields them. A number means the same item on every worker if the stream "
            "yields the same items each time it is opened: its beginning was compared when a worker joined.\n"
        ),
    )
    trained(running, "skipping", lines(GENESIS, 1, 1), terms)
    assert pliant("audit", "skipping", "--json").json["lost"] == 10


@pytest.mark.parametrize("kind", ["shuffled", "sequential"])
def test_epochs_of_another_length_than_the_data_are_recomputed(kind: str, running: Running, pliant: Pliant) -> None:
    terms = replace(TERMS, extra=(("order", kind), ("data", "47 samples")))

    def in_sequence(epoch: int, positions: range) -> tuple[int, ...]:
        return tuple((epoch * GRID.samples + position) % 47 for position in positions)

    take = in_sequence if kind == "sequential" else Order(TERMS.seed, GRID.samples, 47).take
    trained(running, f"passes-{kind}", other_lines(take, 12), terms)
    done = pliant("audit", f"passes-{kind}")
    assert done.out == (
        f"passes-{kind}: every position of the order used exactly once\n"
        "120 samples in 12 committed steps, 0 lost, 0 repeated\n"
        "Each epoch takes 60 samples of passes over 47 samples, from where the epoch before it ended.\n"
    )
    trained(running, f"other-{kind}", lines(GENESIS, 1, 1), terms)
    assert pliant("audit", f"other-{kind}", "--json").json["lost"] == 10


def test_an_order_of_a_newer_version_is_not_guessed_at(running: Running, pliant: Pliant) -> None:
    trained(running, "newer", lines(GENESIS, 1, 1), replace(TERMS, extra=(("order", "spiral"),)))
    done = pliant("audit", "newer")
    assert (done.code, "'spiral', which this version of Pliant does not support" in done.err) == (3, True)


def test_without_a_member_there_is_nothing_to_audit(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "empty", "--workers", "1")
    done = pliant("audit", "empty")
    assert (done.code, done.err) == (3, "pliant: Nothing to audit: no worker has joined empty yet.\n")


def test_without_numpy_it_is_slower_and_says_the_same(
    running: Running, pliant: Pliant, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(running, "slow", lines(GENESIS, 1, 12))
    quick = pliant("audit", "slow", "--json").json
    real_import = builtins.__import__

    def without_numpy(name: str, *args: object, **named: object) -> object:
        if name == "pliant.train.data.order":
            raise ModuleNotFoundError("No module named 'numpy'")
        return real_import(name, *args, **named)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(builtins, "__import__", without_numpy)
    assert module._fast_expected_digest() is None
    assert pliant("audit", "slow", "--json").json == quick


def test_after_a_rollback_the_history_ends_at_its_base() -> None:
    history = LedgerHistory()
    before = lines(GENESIS, 1, 5)
    events: tuple[m.Event, ...] = (
        m.MemberJoined(NOW, member(A, 1), TERMS),
        m.WorldFormed(NOW, world(1, A, kind=WorldKind.ROLLBACK)),
        m.StepsCommitted(NOW, 1, A, before),
        m.WorldFormed(NOW, world(2, A, B)),
    )
    for event in events:
        history.add(event)
    assert history.head == before[-1].lineage  # a planned world changes nothing about it
    history.add(m.WorldFormed(NOW, world(3, B, kind=WorldKind.ROLLBACK, base=before[2].lineage)))
    assert history.head == before[2].lineage
    found = module._run_audit(history, TERMS, "shuffled")
    assert (found.ok, found.steps, found.rolled_back, found.samples) == (True, 3, 2, 30)
    again = lines(before[2].lineage, 3, 9)
    history.add(m.StepsCommitted(NOW, 3, B, again))
    found = module._run_audit(history, TERMS, "shuffled")
    assert (found.ok, found.steps, found.rolled_back, found.samples) == (True, 12, 2, 120)
    assert module._run_audit(history, TERMS, "function") == found


def test_another_attempt_goes_on_with_the_ledger_or_begins_its_own() -> None:
    history = LedgerHistory()
    before = lines(GENESIS, 1, 5)
    again = m.JobCreated(NOW, "demo", JobSpec(1, 4, Target(2)), attempt=2, resumes=True)
    events: tuple[m.Event, ...] = (
        m.MemberJoined(NOW, member(A, 1), TERMS),
        m.WorldFormed(NOW, world(1, A, kind=WorldKind.ROLLBACK)),
        m.StepsCommitted(NOW, 1, A, before),
        m.StateChanged(NOW, JobState.FAILED, "too often"),
        again,
        m.MemberJoined(NOW, member(B, 2), TERMS),
        m.WorldFormed(NOW, world(2, B, kind=WorldKind.ROLLBACK, base=before[2].lineage)),
        m.StepsCommitted(NOW, 2, B, lines(before[2].lineage, 2, 9)),
        m.StateChanged(NOW, JobState.FINISHED, "all steps are committed"),
    )
    for event in events:
        history.add(event)
    assert history.finished
    found = module._run_audit(history, TERMS, "shuffled")
    assert (found.ok, found.steps, found.rolled_back) == (True, 12, 2)
    history.add(replace(again, attempt=3, resumes=False))
    assert (history.terms, history.head, history.lines, history.finished) == (None, None, [], False)
    history.add(m.MemberJoined(NOW, member(C, 3), TERMS))
    history.add(m.StepsCommitted(NOW, 3, C, lines(GENESIS, 3, 2)))
    found = module._run_audit(history, TERMS, "shuffled")
    assert (found.ok, found.steps, found.rolled_back, found.samples) == (True, 2, 0, 20)


def test_of_many_problems_the_first_are_shown_and_the_rest_counted() -> None:
    shown = list(module._problem_lines(f"problem {number}" for number in range(25)))
    assert (shown[0], shown[19], shown[20]) == ("- problem 0", "- problem 19", "- and 5 more; --json has them all")
