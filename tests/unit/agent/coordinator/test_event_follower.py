import threading

from pliant.agent.coordinator.event_follower import Story
from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.job import JobState
from unit.core.build import NOW, TERMS, A, B, member


class Written:
    """A screen that remembers the events."""

    def __init__(self) -> None:
        self.revisions: list[int] = []

    def event(self, revision: int, event: Event) -> None:
        self.revisions.append(revision)

    def worker(self, member: str, line: bytes) -> None:
        raise AssertionError(line)

    def say(self, text: str) -> None:
        raise AssertionError(text)


def test_each_event_is_told_once_in_order_and_nothing_from_before() -> None:
    screen = Written()
    story = Story(screen, 2, JobState.WAITING, "nobody is there")
    for revision in (1, 2, 3, 4, 3, 4, 5):
        story.tell(revision, m.WorldEntered(NOW, 1))
    assert screen.revisions == [3, 4, 5]
    assert (story.revision, story.state, story.why) == (5, JobState.WAITING, "nobody is there")


def test_who_joined_and_how_the_job_stands_is_remembered() -> None:
    story = Story(Written(), 0, JobState.WAITING, "")
    story.tell(1, m.MemberJoined(NOW, member(A, 1), TERMS))
    story.tell(2, m.StateChanged(NOW, JobState.FAILED, "a reason"))
    assert story.joined == {A}
    assert (story.state, story.why) == (JobState.FAILED, "a reason")


def test_who_was_lost_is_remembered_and_who_left_is_not() -> None:
    story = Story(Written(), 0, JobState.RUNNING, "")
    story.tell(1, m.MemberGone(NOW, A, "left", "left as planned"))
    story.tell(2, m.MemberGone(NOW, B, "lost", "its lease ran out"))
    assert list(story.lost) == [B]


def test_two_tellers_tell_every_event_once() -> None:
    screen = Written()
    story = Story(screen, 0, JobState.WAITING, "")

    def tell() -> None:
        for revision in range(1, 2001):
            story.tell(revision, m.WorldEntered(NOW, revision))

    tellers = [threading.Thread(target=tell) for _ in range(2)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    assert screen.revisions == list(range(1, 2001))
