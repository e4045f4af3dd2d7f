"""Permission for chaos. A job from before the setting does not allow it."""

import json

from pliant.core.messages import JobCreated
from pliant.core.model.job import Job, JobSpec, Target
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state
from unit.core.build import new_job


def without_chaos(data: bytes) -> bytes:
    said = json.loads(data)

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if name != "chaos_allowed"}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return json.dumps(strip(said)).encode()


def test_a_job_that_was_stored_before_there_was_chaos_does_not_allow_it() -> None:
    job = new_job()
    assert not job.spec.chaos_allowed
    assert decode_state(without_chaos(encode_state(job)), Job) == job


def test_an_event_of_before_there_was_chaos_can_be_read() -> None:
    said = {
        "type": "JobCreated",
        "at": 1.0,
        "name": "demo",
        "spec": {"size_min": 1, "size_max": 2, "target": {"size": 2}},
    }
    assert EVENTS.decode(json.dumps(said).encode()) == JobCreated(1.0, "demo", JobSpec(1, 2, Target(2)))
