"""The cluster's own HorizontalPodAutoscaler changes the size of a job through its scale subresource."""

from kube.acceptance.installed import Installed, elastic_job, wait_until
from kube.acceptance.metrics_api import autoscaler, metrics_api


def test_a_horizontal_pod_autoscaler_grows_and_shrinks_a_job(installed: Installed, expected: str) -> None:
    with metrics_api(installed.plane) as metrics, elastic_job(installed, "auto", 1, 3, 1) as job:
        job.wait_active(1)
        first = job.running()
        metrics.value = 3
        installed.plane.apply(autoscaler(job.namespace, job.name, 1, 3))
        job.wait_active(3)
        assert first.items() <= job.running().items()
        metrics.value = 1
        job.wait_active(1)
        wait_until(lambda: len(job.pods()) == 1, "the pods that left to be deleted")
        assert job.running() == first
        assert metrics.asked > 0
        job.kubectl("delete", "hpa", job.name)
        job.judge(expected)
