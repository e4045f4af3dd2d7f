"""Two jobs on the slots of two nodes: the urgent one takes workers of the other by consent, and gives them back."""

from time import monotonic

from kube.acceptance.installed import Installed, elastic_job, wait_until
from pliant.kube.names import SLOTS_LABEL


def test_an_urgent_job_takes_workers_by_consent_and_the_other_grows_back(installed: Installed, expected: str) -> None:
    plane, lending = installed.plane, [node.name for node in installed.cluster.nodes[1:]]
    installed.pliant("queue", "set", "--slots", "auto")
    plane.kubectl("label", "node", *lending, f"{SLOTS_LABEL}=2")
    try:
        with elastic_job(installed, "night", 1, 4, 4, queue="batch") as night:
            night.wait_active(4)
            pods = set(night.running())
            began = monotonic()
            with elastic_job(installed, "urgent", 3, 3, 3, queue="research", priority=5) as urgent:
                wait_until(lambda: urgent.trains(3), "the urgent job's workers")
                print(f"  the urgent job had its 3 workers after {monotonic() - began:.1f} s", flush=True)
                assert night.trains(1)
                [survivor] = night.running()
                assert survivor in pods
                assert night.condition("Granted")[:2] == ("True", "Partly")
                assert not night.gone(), "a worker was lost instead of asked"
                urgent.judge(expected)
            night.wait_active(4)
            assert survivor in night.running()
            night.judge(expected)
    finally:
        plane.kubectl("label", "node", *lending, f"{SLOTS_LABEL}-")
        installed.pliant("queue", "set", "--slots", "0")
