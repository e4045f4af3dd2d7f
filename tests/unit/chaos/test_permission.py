"""Whether a job allows chaos is known of old jobs, too: it does not."""

import json

from pliant.core.model.job import Job, Target
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state
from unit.core.build import new_job


def without_chaos(data: bytes) -> bytes:
    said = json.loads(data)

    def strip(value: object) -> object:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if name != "chaos"}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return json.dumps(strip(said)).encode()


def test_a_job_that_was_stored_before_there_was_chaos_does_not_allow_it() -> None:
    job = new_job()
    assert not job.chaos
    assert decode_state(without_chaos(encode_state(job)), Job) == job


def test_an_event_of_before_there_was_chaos_can_be_read() -> None:
    said = {
        "type": "JobCreated",
        "at": 1.0,
        "name": "demo",
        "size_min": 1,
        "size_max": 2,
        "target": {"size": 2},
        "wait_limit_s": None,
        "max_restarts": 3,
    }
    event = EVENTS.decode(json.dumps(said).encode())
    assert event.__class__.__name__ == "JobCreated"
    assert getattr(event, "chaos", None) is False
    assert getattr(event, "target", None) == Target(2)
