"""Manifests: what a pod gets, what an installation has, and the definition's shape."""

import re
from itertools import pairwise
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pliant.cli.main import cli
from pliant.core.model.job import Mode
from pliant.kube.manifests.companions import companion_objects, secret
from pliant.kube.manifests.crd import custom_resource_definition
from pliant.kube.manifests.install import Installation, manifests
from pliant.kube.manifests.pods import PodFacts, pod_manifest
from pliant.kube.reconcile import job_spec
from unit.kube.objects import elastic_job

FACTS = PodFacts("https://pliant.pliant-system.svc:7711", has_ca=True)
PS = {"count": 2, "template": {"spec": {"containers": [{"name": "ps", "image": "trainer:1"}]}}}


def pod(tier: str = "base", workers: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    job = elastic_job(workers, **spec)
    return pod_manifest(job, job.spec.workers, 3, tier, FACTS)


def environment(manifest: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in manifest["spec"]["containers"][0]["env"]}


def test_a_pod_has_all_that_its_agent_needs() -> None:
    made = pod(drain={"graceSeconds": 45}, checkpoints={"claimName": "shared"})
    assert environment(made) == {
        "PLIANT_COORDINATOR": "https://pliant.pliant-system.svc:7711",
        "PLIANT_TOKEN_FILE": "/run/pliant/join/token",
        "PLIANT_JOB": "research.digits",
        "PLIANT_AGENT": "digits-w3",
        "PLIANT_HOME": "/run/pliant/home/agent",
        "PLIANT_GRACE_S": "45",
        "PET_NPROC_PER_NODE": "1",
        "PLIANT_CA_FILE": "/run/pliant/join/ca.pem",
        "PLIANT_CHECKPOINT_DIR": "/checkpoints/01234567",
    }
    assert made["spec"]["terminationGracePeriodSeconds"] == 60
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "0123456789abcdef"
    mounts = {each["mountPath"] for each in made["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == {"/run/pliant/join", "/run/pliant/home", "/dev/shm", "/checkpoints"}


def test_a_pod_passes_the_restricted_standard_and_has_no_account_token() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_user_s_own_settings_stay() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "securityContext": {"fsGroup": 7},
            "containers": [{"name": "x", "image": "i", "env": [{"name": "PLIANT_HOME", "value": "/own"}]}],
        },
    }
    made = pod(workers={"template": template})
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["spec"]["securityContext"]["fsGroup"] == 7
    assert environment(made)["PLIANT_HOME"] == "/own"
    assert template["spec"]["containers"][0].keys() == {"name", "image", "env"}  # the template itself is untouched


def test_pods_beyond_min_have_the_lower_class() -> None:
    classes: dict[str, Any] = {"priorityClassName": "training", "surplusPriorityClassName": "spot"}
    assert pod("base", **classes)["spec"]["priorityClassName"] == "training"
    assert pod("surplus", **classes)["spec"]["priorityClassName"] == "spot"
    assert pod("surplus", priorityClassName="training")["spec"]["priorityClassName"] == "training"
    assert "priorityClassName" not in pod()["spec"]


def test_a_parameter_server_has_its_role() -> None:
    job = elastic_job(strategy="ParameterServer", parameterServers=PS)
    assert job.spec.servers is not None
    made = pod_manifest(job, job.spec.servers, 1, "base", FACTS)
    assert made["metadata"]["name"] == "digits-ps1"
    assert environment(made)["PLIANT_ROLE"] == "ps"
    assert environment(made)["PET_ROLE"] == "ps:2"


def test_a_server_of_a_task_queue_is_pliant_s_own_and_takes_no_seat() -> None:
    job = elastic_job(strategy="ParameterServer", mode="Tasks", parameterServers=PS)
    assert job.spec.servers is not None
    server = environment(pod_manifest(job, job.spec.servers, 1, "base", FACTS))
    assert (server["PLIANT_PS"], server["PET_NPROC_PER_NODE"]) == ("1", "0")
    worker = environment(pod_manifest(job, job.spec.workers, 2, "base", FACTS))
    assert not {"PLIANT_ROLE", "PET_ROLE"} & {*worker, *server}
    assert "PLIANT_PS" not in worker
    wanted = job_spec(job.spec)
    assert (wanted.mode, wanted.size_min, wanted.size_max, wanted.roles) == (Mode.TASKS, 2, 8, ())


@pytest.mark.parametrize(("mode", "count", "least"), [("Tasks", 3, 2), ("Tasks", 1, 1), ("Auto", 3, 3)])
def test_one_server_with_copies_elsewhere_may_be_evicted(mode: str, count: int, least: int) -> None:
    job = elastic_job(strategy="ParameterServer", mode=mode, parameterServers={**PS, "count": count})
    [budget] = [each["spec"] for each in companion_objects(job) if each["metadata"]["name"] == "digits-ps"]
    assert budget["minAvailable"] == least


def test_the_companions_guard_the_minimum_and_the_network() -> None:
    job = elastic_job({"processesPerPod": 2, "min": 3})
    kinds = {each["kind"]: each for each in companion_objects(job)}
    assert kinds["PodDisruptionBudget"]["spec"]["minAvailable"] == 2
    assert kinds["NetworkPolicy"]["spec"]["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": {"pliant.dev/job": "digits"}}}]}
    ]
    assert kinds["Service"]["spec"]["clusterIP"] == "None"
    never = companion_objects(elastic_job(drain={"blockEviction": "Never"}))
    assert "PodDisruptionBudget" not in {each["kind"] for each in never}


def test_a_claim_outlives_its_job() -> None:
    job = elastic_job(checkpoints={"volumeClaim": {"spec": {"accessModes": ["ReadWriteMany"]}}})
    claim = next(each for each in companion_objects(job) if each["kind"] == "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "digits-checkpoints"
    assert "ownerReferences" not in claim["metadata"]


def test_the_secret_has_the_token_and_the_ca() -> None:
    made = secret(elastic_job(), "pliant_x_y", "PEM")
    assert made["stringData"] == {"token": "pliant_x_y\n", "ca.pem": "PEM"}


def test_an_installation_has_one_pod_with_one_volume() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in manifests(Installation("pliant:1"))}
    deployment = found["Deployment", "pliant"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert found["PersistentVolumeClaim", "pliant"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    coordinator, operator = deployment["template"]["spec"]["containers"]
    assert "--tls-cert" in coordinator["args"]
    assert coordinator["args"].count("--host") == 5
    assert operator["args"][:2] == ["kube", "operator"]
    assert "https://pliant.pliant-system.svc:7711" in operator["args"]


def test_several_coordinators_have_a_name_each_which_they_advertise_and_pods_know() -> None:
    wanted = Installation("pliant:1", store="etcd:e1:2379", coordinators=2)
    found = {(each["kind"], each["metadata"]["name"]): each for each in manifests(wanted)}
    assert ("Deployment", "pliant") not in found
    assert ("PersistentVolumeClaim", "pliant") not in found
    workload = found["StatefulSet", "pliant"]["spec"]
    assert (workload["replicas"], workload["serviceName"]) == (2, "pliant-coordinators")
    assert found["Service", "pliant-coordinators"]["spec"]["publishNotReadyAddresses"]
    coordinator, operator = workload["template"]["spec"]["containers"]
    own = "$(POD_NAME).pliant-coordinators.pliant-system.svc"
    assert option(coordinator, "--advertise") == f"https://{own}:7711"
    assert own in coordinator["args"]
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in coordinator["env"]
    assert option(operator, "--pods-coordinator") == ",".join(
        f"https://pliant-{number}.pliant-coordinators.pliant-system.svc:7711" for number in range(2)
    )


def test_a_standby_is_ready_so_that_a_rollout_ends() -> None:
    coordinator, _ = containers(Installation("pliant:1"))
    assert coordinator["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_credentials_for_etcd_reach_the_coordinator_alone_and_as_files() -> None:
    wanted = Installation("pliant:1", store="etcd:e1:2379", etcd_secret="etcd-client", etcd_user="pliant")
    coordinator, operator = containers(wanted)
    given = {each["name"]: each["value"] for each in coordinator["env"]}
    assert given["PLIANT_ETCD_CA_FILE"] == "/etc/pliant/etcd/ca.crt"
    assert given["PLIANT_ETCD_USER"] == "pliant"
    assert given["PLIANT_ETCD_PASSWORD_FILE"] == "/etc/pliant/etcd/password"
    assert "etcd" in {each["name"] for each in coordinator["volumeMounts"]}
    assert "etcd" not in {each["name"] for each in operator["volumeMounts"]}
    assert not any("ETCD" in each["name"] for each in operator["env"])


def containers(wanted: Installation) -> list[dict[str, Any]]:
    [workload] = [each for each in manifests(wanted) if each["kind"] in ("Deployment", "StatefulSet")]
    found: list[dict[str, Any]] = workload["spec"]["template"]["spec"]["containers"]
    return found


def option(container: dict[str, Any], name: str) -> str:
    """Return the value of an option of a container's command."""
    return str(container["args"][container["args"].index(name) + 1])


def test_the_operator_s_rights_are_the_least_that_it_needs() -> None:
    role = next(each for each in manifests(Installation("pliant:1")) if each["kind"] == "ClusterRole")
    rights = {
        (group, kind): rule["verbs"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert "*" not in {verb for verbs in rights.values() for verb in verbs}
    assert rights["", "secrets"] == ["get", "create"]
    assert rights["", "nodes"] == ["list", "watch"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--coordinators", "2"], "needs --store etcd"),
        (["--store", "memory:"], "--store must be etcd"),
        (["--etcd-secret", "etcd-client"], "are for --store etcd"),
        (["--store", "etcd:e:2379", "--etcd-user", "pliant"], "needs --etcd-secret"),
    ],
)
def test_an_installation_that_cannot_work_is_refused(arguments: list[str], why: str) -> None:
    from pliant.errors import BadInput

    done = CliRunner().invoke(cli, ["kube", "install", "--print", "--image", "x", *arguments])
    assert isinstance(done.exception, BadInput)
    assert why in done.exception.why


def test_install_prints_every_manifest_as_yaml() -> None:
    done = CliRunner().invoke(cli, ["kube", "install", "--print", "--image", "pliant:1", "--insecure"])
    assert done.exit_code == 0, done.output
    kinds = [each["kind"] for each in yaml.safe_load_all(done.output)]
    assert kinds[0] == "CustomResourceDefinition"
    assert kinds[-1] == "Deployment"


def test_every_setting_of_the_schema_is_read() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(spec) == {
        "strategy",
        "mode",
        "suspend",
        "priorityClassName",
        "surplusPriorityClassName",
        "managedBy",
        "queue",
        "priority",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "podsAfterFinish",
        "workers",
        "parameterServers",
        "checkpoints",
        "drain",
        "failure",
    }
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.workers.target"


def test_submissions_are_off_unless_images_are_named_and_have_rights_in_one_namespace() -> None:
    def commands(wanted: Installation) -> list[list[str]]:
        return [each["args"] for each in containers(wanted)]

    off = Installation("pliant:1")
    assert not any("submissions" in word for args in commands(off) for word in args)
    assert "Role" not in [each["kind"] for each in manifests(off)]
    on = Installation("pliant:1", submissions=("team/*", "fixed:1"), submission_namespace="research")
    coordinator, operator = commands(on)
    given = [value for name, value in pairwise(coordinator) if "submissions" in name]
    assert given == ["team/*", "fixed:1"]
    assert operator[operator.index("--submissions") + 1] == "research"
    rights = [each for each in manifests(on) if each["kind"] in ("Role", "RoleBinding")]
    assert {each["metadata"]["namespace"] for each in rights} == {"research"}
    assert rights[0]["rules"] == [{"apiGroups": ["pliant.dev"], "resources": ["elasticjobs"], "verbs": ["create"]}]


def test_the_schema_demands_a_pod_with_a_container_and_keeps_all_else_of_a_template() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for role in ("workers", "parameterServers"):
        template = spec[role]["properties"]["template"]
        pod = template["properties"]["spec"]
        containers = pod["properties"]["containers"]
        assert (template["required"], pod["required"], containers["minItems"]) == (["spec"], ["containers"], 1)
        assert all(each["x-kubernetes-preserve-unknown-fields"] for each in (template, pod, containers["items"]))


@pytest.mark.parametrize(
    ("name", "is_good"), [("digits", True), ("run-2024", True), ("2024-run", False), ("a.b", False), ("a-", False)]
)
def test_a_name_must_do_for_a_service_and_a_host(name: str, is_good: bool) -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    rules = [each["rule"] for each in version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]]
    [expression] = [
        found[1] for rule in rules if (found := re.fullmatch(r"self\.metadata\.name\.matches\('(.+)'\)", rule))
    ]
    assert (re.search(expression, name) is not None) is is_good
