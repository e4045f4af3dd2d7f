"""Jobs with a script, which lent machines run."""

from __future__ import annotations

import pytest

from pliant.core.allocate import Pool
from pliant.core.allocate.model import bad_pool
from pliant.core.job.validation import SCRIPT_MAX, bad_spec
from pliant.core.messages.describe import describe_settings
from pliant.core.model.job import JobSpec


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (("train.py", "--lr", "../0.1"), ""),
        (("folder/train.py",), ""),
        (("",), "the script must be a path below the folder of scripts, without '..'; got ''"),
        (("/bin/sh",), "the script must be a path below the folder of scripts, without '..'; got '/bin/sh'"),
        (("a/../../b",), "the script must be a path below the folder of scripts, without '..'; got 'a/../../b'"),
        (("--help",), "the script must be a path below the folder of scripts, without '..'; got '--help'"),
        (("a", "\0"), "the script and its arguments must have up to 4096 characters, without zero bytes"),
        (("a" * (SCRIPT_MAX + 1),), "the script and its arguments must have up to 4096 characters, without zero bytes"),
    ],
)
def test_a_script_cannot_leave_its_folder(script: tuple[str, ...], wrong: str) -> None:
    assert bad_spec(JobSpec(1, 2, queue="default", script=script)) == wrong


def test_a_job_with_a_script_needs_a_queue() -> None:
    wrong = "machines are lent to the jobs of a pool: pass --queue NAME with a script"
    assert bad_spec(JobSpec(1, 2, script=("train.py",))) == wrong


def test_another_script_is_another_setting() -> None:
    before, after = JobSpec(1, 2, queue="a", script=("a.py", "1")), JobSpec(1, 2, queue="a")
    assert describe_settings(before, after) == "script a.py 1 -> none"


def test_a_pool_of_lent_machines_has_no_number() -> None:
    assert bad_pool(Pool(0, is_lent=True)) == ""
    wrong = "a pool of lent machines has the slots that they lend: leave out the numbers of slots and spot slots"
    assert bad_pool(Pool(1, is_lent=True)) == wrong
    assert bad_pool(Pool(0, is_lent=True, cluster_slots=8)) == ""
    assert bad_pool(Pool(0, is_lent=True, cluster_slots=-1)) == "a cluster can lend 0 to 1000000 slots; got -1"
    assert "only a pool of lent machines" in bad_pool(Pool(8, cluster_slots=1))
