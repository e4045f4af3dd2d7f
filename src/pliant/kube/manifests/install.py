"""The manifests of an installation: definition, namespace, rights, coordinator and operator. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pliant.kube.manifests.crd import custom_resource_definition
from pliant.kube.names import GROUP, PLURAL

Manifest = dict[str, Any]

APP = "pliant"
PEERS = "pliant-coordinators"
POD_NAME = "$(POD_NAME)"  # the kubelet replaces it in arguments
PORT = 7711
HOME = "/var/lib/pliant/home"  # a folder inside the volume: the volume itself may be writable for a group
USER = 65532
ETCD_FILES = "/etc/pliant/etcd"


@dataclass(frozen=True, slots=True)
class Installation:
    """The choices of one installation."""

    image: str
    namespace: str = "pliant-system"
    store: str | None = None  # None: SQLite on a volume
    storage: str = "1Gi"
    storage_class: str | None = None
    tls_secret: str | None = "pliant-tls"  # with tls.crt, tls.key and ca.crt; None: no TLS
    coordinators: int = 1
    submissions: tuple[str, ...] = ()  # images that submissions may use; empty: no submissions
    submission_namespace: str = "default"
    etcd_secret: str | None = None  # with ca.crt, and password if there is a user
    etcd_user: str | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the coordinator's Service."""
        ns = self.namespace
        return APP, f"{APP}.{ns}", f"{APP}.{ns}.svc", f"{APP}.{ns}.svc.cluster.local"

    @property
    def scheme(self) -> str:
        return "http" if self.tls_secret is None else "https"

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the coordinators for pods. A client that has all of them leaves a silent one early."""
        if self.coordinators == 1:
            return (f"{self.scheme}://{APP}.{self.namespace}.svc:{PORT}",)
        return tuple(f"{self.scheme}://{self.peer(f'{APP}-{number}')}:{PORT}" for number in range(self.coordinators))

    def peer(self, pod: str) -> str:
        """Return the name of one of several coordinators."""
        return f"{pod}.{PEERS}.{self.namespace}.svc"


def manifests(wanted: Installation) -> list[Manifest]:
    """Return every object, in the order in which `kubectl apply` needs them."""
    claim = [_claim(wanted)] if wanted.store is None else []
    return [
        custom_resource_definition(),
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": wanted.namespace,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted", **_labels()},
            },
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(wanted)},
        *_rights(wanted),
        *(_submission_rights(wanted) if wanted.submissions else ()),
        *_priorities(),
        *claim,
        _service(wanted),
        *([_peers(wanted)] if wanted.coordinators > 1 else []),
        _workload(wanted),
    ]


def _labels() -> dict[str, str]:
    return {"app.kubernetes.io/name": APP, "app.kubernetes.io/component": "coordinator"}


def _meta(wanted: Installation, name: str = APP) -> dict[str, Any]:
    return {"name": name, "namespace": wanted.namespace, "labels": _labels()}


def rules() -> list[dict[str, Any]]:
    """Return the operator's rights. It reads no Secret's contents in lists, and creates nothing but its own kinds."""
    return [
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch", "patch", "delete"]},
        {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["update"]},
        {"apiGroups": [GROUP], "resources": [f"{PLURAL}/finalizers"], "verbs": ["update"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "create", "delete"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "create"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "create", "patch"]},
    ]


def _rights(wanted: Installation) -> list[Manifest]:
    name = f"{APP}-operator"
    subject = {"kind": "ServiceAccount", "name": APP, "namespace": wanted.namespace}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    return [
        {**role, "rules": rules()},
        {**binding, "roleRef": ref, "subjects": [subject]},
    ]


def submission_rules() -> list[dict[str, Any]]:
    """Return the operator's rights in the namespace of submitted jobs."""
    return [{"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["create"]}]


def _submission_rights(wanted: Installation) -> list[Manifest]:
    meta = {"name": f"{APP}-submissions", "namespace": wanted.submission_namespace, "labels": _labels()}
    subject = {"kind": "ServiceAccount", "name": APP, "namespace": wanted.namespace}
    version = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{APP}-submissions"}
    return [
        {**version, "kind": "Role", "metadata": meta, "rules": submission_rules()},
        {**version, "kind": "RoleBinding", "metadata": meta, "roleRef": ref, "subjects": [subject]},
    ]


def _priorities() -> list[Manifest]:
    """Return two priority classes: pods up to a job's minimum, and pods beyond it, which the scheduler takes first."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return [
        {
            **kind,
            "metadata": {"name": "pliant-base"},
            "value": 1000,
            "description": "Pods of ElasticJobs up to their minimum.",
        },
        {
            **kind,
            "metadata": {"name": "pliant-surplus"},
            "value": -1000,
            "preemptionPolicy": "Never",
            "description": "Pods of ElasticJobs beyond their minimum.",
        },
    ]


def _claim(wanted: Installation) -> Manifest:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOncePod"],  # a SQLite store serves one machine
        "resources": {"requests": {"storage": wanted.storage}},
    }
    if wanted.storage_class is not None:
        spec["storageClassName"] = wanted.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _meta(wanted), "spec": spec}


def _service(wanted: Installation) -> Manifest:
    port = {"name": "api", "port": PORT, "targetPort": "api"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(wanted),
        "spec": {"selector": _labels(), "ports": [port]},
    }


def _peers(wanted: Installation) -> Manifest:
    """Return the Service that gives each coordinator a name. Clients need the name of one that is not ready too."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels()}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(wanted, PEERS), "spec": spec}


def _workload(wanted: Installation) -> Manifest:
    """Return a Deployment with one coordinator, or a StatefulSet with several, so that each has a name of its own."""
    kind: str = "Deployment"
    how: dict[str, Any] = {"strategy": {"type": "Recreate"}}
    if wanted.coordinators > 1:
        kind, how = "StatefulSet", {"serviceName": PEERS, "podManagementPolicy": "Parallel"}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": _meta(wanted),
        "spec": {
            "replicas": wanted.coordinators,
            **how,
            "selector": {"matchLabels": _labels()},
            "template": {"metadata": {"labels": _labels()}, "spec": _pod(wanted)},
        },
    }


def _pod(wanted: Installation) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "home", "persistentVolumeClaim": {"claimName": APP}}
        if wanted.store is None
        else {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if wanted.tls_secret is not None:
        volumes.append({"name": "tls", "secret": {"secretName": wanted.tls_secret, "defaultMode": 0o440}})
    if wanted.etcd_secret is not None:
        volumes.append({"name": "etcd", "secret": {"secretName": wanted.etcd_secret, "defaultMode": 0o440}})
    security = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _labels()},
    }
    return {
        "serviceAccountName": APP,
        "securityContext": security,
        **({"topologySpreadConstraints": [spread]} if wanted.coordinators > 1 else {}),
        "containers": [_coordinator(wanted), _operator(wanted)],
        "volumes": volumes,
    }


def _container(wanted: Installation, name: str, args: list[str], memory: str) -> dict[str, Any]:
    mounts = [{"name": "home", "mountPath": "/var/lib/pliant"}, {"name": "tmp", "mountPath": "/tmp"}]
    if wanted.tls_secret is not None:
        mounts.append({"name": "tls", "mountPath": "/etc/pliant/tls"})
    environment = {"PLIANT_HOME": HOME}
    if wanted.tls_secret is not None:
        environment["PLIANT_CA_FILE"] = "/etc/pliant/tls/ca.crt"
    return {
        "name": name,
        "image": wanted.image,
        "command": ["pliant"],
        "args": args,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _coordinator(wanted: Installation) -> dict[str, Any]:
    args = ["coordinator", "--listen", f"0.0.0.0:{PORT}", "--expose", "--log-json"]
    args += [part for host in (*wanted.hosts, "localhost") for part in ("--host", host)]
    if wanted.store is not None:
        args += ["--store", wanted.store]
    if wanted.coordinators > 1:
        host = wanted.peer(POD_NAME)
        args += ["--host", host, "--advertise", f"{wanted.scheme}://{host}:{PORT}"]
    if wanted.tls_secret is None:
        args.append("--insecure")
    else:
        args += ["--tls-cert", "/etc/pliant/tls/tls.crt", "--tls-key", "/etc/pliant/tls/tls.key"]
    args += [part for image in wanted.submissions for part in ("--accept-submissions", image)]
    found = _container(wanted, "coordinator", args, "128Mi")
    found["env"] += _coordinator_environment(wanted)
    if wanted.etcd_secret is not None:
        found["volumeMounts"].append({"name": "etcd", "mountPath": ETCD_FILES})
    # A standby is ready: a rollout ends, and clients that reach it follow its answer to the leader.
    probe = {"httpGet": {"path": "/readyz", "port": "api", "scheme": wanted.scheme.upper()}, "periodSeconds": 2}
    return {**found, "ports": [{"name": "api", "containerPort": PORT}], "readinessProbe": probe}


def _coordinator_environment(wanted: Installation) -> list[dict[str, Any]]:
    """Return the variables of the coordinator alone: its name, and its credentials for etcd."""
    found: list[dict[str, Any]] = []
    if wanted.coordinators > 1:
        found.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    if wanted.etcd_secret is not None:
        found.append({"name": "PLIANT_ETCD_CA_FILE", "value": f"{ETCD_FILES}/ca.crt"})
    if wanted.etcd_user is not None:
        found.append({"name": "PLIANT_ETCD_USER", "value": wanted.etcd_user})
        found.append({"name": "PLIANT_ETCD_PASSWORD_FILE", "value": f"{ETCD_FILES}/password"})
    return found


def _operator(wanted: Installation) -> dict[str, Any]:
    own = f"{wanted.scheme}://localhost:{PORT}"
    args = ["kube", "operator", "--coordinator", own, "--pods-coordinator", ",".join(wanted.urls)]
    if wanted.submissions:
        args += ["--submissions", wanted.submission_namespace]
    return _container(wanted, "operator", [*args, "--log-json"], "96Mi")
