"""The tutorial `docs/start-kubernetes.md`, command for command. The fixture `installed` ran its section "Install"."""

from kube.acceptance.installed import Installed, Job, commands_of, wait_until
from kube.cluster.images import PLIANT, TRAINER

WATCH_S = 5


def test_the_tutorial_word_for_word(installed: Installed) -> None:
    for image, command in zip((PLIANT, TRAINER), commands_of("1. Build the images"), strict=True):
        assert f" -t {image} " in command, "the images of the test have the page's names"

    apply, watch = commands_of("3. Train")
    installed.shell(apply)
    job = Job(installed, "default", "digits")
    wait_until(lambda: job.active() == 2, "two workers")
    shown = installed.shell(f"timeout --preserve-status {WATCH_S} {watch} || true")
    assert shown.split()[:6] == ["NAME", "STATE", "ACTIVE", "TARGET", "STEP", "WHY"]
    job.wait_steps(3)

    grow, shrink = commands_of("4. Change the size")
    first = set(job.running())
    installed.shell(grow)
    wait_until(lambda: job.active() == 4, "four workers")
    assert first <= set(job.running())
    installed.shell(shrink)
    wait_until(lambda: job.active() == 2 and len(job.pods()) == 2, "two workers")
    assert set(job.running()) == first

    delete, drain = commands_of("5. Take something away")
    installed.shell(delete)
    wait_until(lambda: "digits-w1" not in job.pods() and job.active() == 2, "a new worker")
    assert first - {"digits-w1"} <= set(job.running())

    node = next(each for each in installed.cluster.nodes[1:] if each.name in job.running().values())
    rest = {pod for pod, where in job.running().items() if where != node.name}
    installed.shell(drain.replace("NODE", node.name))
    wait_until(lambda: job.active() == 2 and node.name not in job.running().values(), "workers elsewhere")
    assert rest <= set(job.running())
    installed.plane.kubectl("uncordon", node.name)

    homes = sorted(where for where in job.running().values() if where != installed.cluster.nodes[0].name)
    if homes:  # both may be beside the coordinator by now
        off = installed.cluster.node(homes[0])
        rest = {pod for pod, where in job.running().items() if where != off.name}
        off.power_off()
        try:
            wait_until(lambda: job.active() == 2 and off.name not in job.running().values(), "a worker elsewhere")
            assert rest <= set(job.running())
        finally:
            off.start()
        off.wait_ready()

    wait, audit, end = commands_of("6. The end")
    installed.shell(wait)
    assert "exactly once" in installed.shell(audit)
    installed.shell(end)
    wait_until(lambda: not job.pods(), "the deletion of the pods")
