"""Jobs that end without finishing: by a fatal exit code, by deletion, and by deletion while the operator is away."""

from kube.acceptance.installed import SYSTEM, Installed, Job, elastic_job, job_manifest, wait_until


def is_gone(job: Job) -> bool:
    """Return whether nothing of a job is left."""
    kinds = "elasticjobs,pods,services,networkpolicies,poddisruptionbudgets"
    left = job.kubectl("get", kinds, "-o", "name").split() + job.kubectl("get", "secrets", "-o", "name").split()
    return not [each for each in left if job.name in each]


def test_a_fatal_exit_code_fails_the_job_at_once_and_leaves_the_pod_for_its_log(installed: Installed) -> None:
    namespace = installed.plane.namespace("t-fatal", **{"pod-security.kubernetes.io/enforce": "restricted"})
    _, made = job_manifest(namespace, "fatal", 1, 1, 1, failure={"fatalExitCodes": [78], "maxRestarts": 3})
    container = made["spec"]["workers"]["template"]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "echo the data is missing; exit 78"]
    del container["volumeMounts"], made["spec"]["workers"]["template"]["spec"]["volumes"]
    installed.plane.apply(made)
    job = Job(installed, namespace, "fatal")
    job.wait_state("Failed")
    assert "78" in job.status()["reason"]
    [pod] = job.pods()
    assert "the data is missing" in job.kubectl("logs", pod)
    installed.plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_job_that_is_deleted_while_it_runs_leaves_nothing_behind(installed: Installed) -> None:
    with elastic_job(installed, "deleted", 1, 2, 2) as job:
        job.wait_active(2)
        pod = next(iter(job.pods().values()))
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [each for each in pod["spec"]["volumes"] if "projected" in each], "a pod has a token of the API"
        job.kubectl("delete", "elasticjob", job.name, "--cascade=foreground", "--timeout=280s")
        wait_until(lambda: is_gone(job), "the deletion of everything")
        assert job.key not in installed.pliant("jobs")


def test_a_job_that_is_deleted_while_the_operator_is_away_goes_when_it_returns(installed: Installed) -> None:
    with elastic_job(installed, "orphan", 1, 1, 1) as job:
        job.wait_active(1)
        installed.plane.kubectl("-n", SYSTEM, "scale", "deployment/pliant", "--replicas=0")
        try:
            job.kubectl("delete", "elasticjob", job.name, "--wait=false")
            job.kubectl("get", "elasticjob", job.name)
        finally:
            installed.plane.kubectl("-n", SYSTEM, "scale", "deployment/pliant", "--replicas=1")
            installed.wait_ready()
        wait_until(lambda: is_gone(job), "the deletion of everything")
