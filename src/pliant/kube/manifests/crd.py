"""The CustomResourceDefinition of ElasticJob, as data. `pliant kube install --print` prints it."""

from __future__ import annotations

from typing import Any

from pliant.core.job.validation import PRIORITY_MAX
from pliant.core.model.names import NAME_MAX
from pliant.core.submissions import PROCESSES_MAX, SERVERS_MAX, SIZE_MAX, TASK_MAX
from pliant.kube.names import GROUP, KIND, PLURAL, VERSION

Schema = dict[str, Any]


def custom_resource_definition() -> dict[str, Any]:
    """Return the definition with its schema, its rules, the scale subresource and the printed columns."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": PLURAL,
                "singular": KIND.lower(),
                "kind": KIND,
                "shortNames": ["ej"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.workers.target",
                            "statusReplicasPath": ".status.workers.pods",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _columns() -> list[dict[str, Any]]:
    columns = [
        ("State", "string", ".status.state"),
        ("Active", "integer", ".status.workers.active"),
        ("Target", "integer", ".spec.workers.target"),
        ("Step", "integer", ".status.progress.step"),
        ("Why", "string", ".status.reason"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    shown: list[dict[str, Any]] = [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns]
    wide = {"name": "Suspend", "type": "boolean", "jsonPath": ".spec.suspend", "priority": 1}
    return [*shown, wide]


# ----------------------------------------------------------------------------------------------- building blocks


def _object(properties: dict[str, Schema], required: tuple[str, ...] = (), **more: Any) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **needed, "properties": properties, **more}


def _integer(
    low: int, high: int | None = None, default: int | None = None, about: str = "", wide: bool = False
) -> Schema:
    found: Schema = {"type": "integer", "format": "int64" if wide else "int32", "minimum": low}
    if high is not None:
        found["maximum"] = high
    if default is not None:
        found["default"] = default
    return {**found, "description": about} if about else found


def _choice(*values: str, about: str, default: bool = True) -> Schema:
    chosen = {"default": values[0]} if default else {}
    return {"type": "string", "enum": list(values), **chosen, "description": about}


def _text(about: str, most: int = 253) -> Schema:
    return {"type": "string", "maxLength": most, "description": about}


def _rules(*rules: tuple[str, str]) -> Schema:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _anything(about: str) -> Schema:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": about}


# ------------------------------------------------------------------------------------------------ specification


def _schema() -> Schema:
    ended = "self.status.state in ['Finished', 'Failed', 'Cancelled']"
    same = "self.spec.workers == oldSelf.spec.workers"
    return _object(
        {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "spec": _spec(), "status": _status()},
        ("spec",),
        description="A training job whose workers come and go.",
        **_rules(
            (
                f"size(self.metadata.name) <= {TASK_MAX}",
                f"metadata.name must have at most {TASK_MAX} characters, because pods and labels are named after it",
            ),
            (
                "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
                "metadata.name must begin with a letter, and have only lower-case letters, digits and inner '-'",
            ),
            (
                f"!has(self.status) || !has(self.status.state) || !({ended}) || {same}",
                "spec.workers cannot change after the job has ended",
            ),
        ),
    )


def _spec() -> Schema:
    return _object(
        {
            "strategy": _choice("AllReduce", "ParameterServer", about="How workers share gradients. Immutable."),
            "mode": _mode(),
            "suspend": {
                "type": "boolean",
                "default": False,
                "description": "Save a checkpoint, let all workers leave and delete their pods.",
            },
            "priorityClassName": _text("The priority class of pods up to min."),
            "surplusPriorityClassName": _text("The priority class of pods beyond min; default priorityClassName."),
            "managedBy": _text("Another controller that runs this job. Immutable.", 63),
            "queue": {
                **_text("The queue of the pool that grants the workers. Without it the job gets its target.", NAME_MAX),
                "pattern": "^[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?$",
            },
            "priority": _integer(
                -PRIORITY_MAX, PRIORITY_MAX, about="The priority among the jobs of the pool: higher first."
            ),
            "activeDeadlineSeconds": _integer(
                1, about="The job fails after this time; suspension does not count.", wide=True
            ),
            "ttlSecondsAfterFinished": _integer(0, about="The ElasticJob is deleted this long after its end."),
            "podsAfterFinish": _choice("KeepFailed", "Keep", "Delete", about="The pods that stay after the end."),
            "workers": _workers(),
            "parameterServers": _servers(),
            "checkpoints": _checkpoints(),
            "drain": _drain(),
            "failure": _failure(),
        },
        ("workers",),
        **_rules(
            (
                "(self.strategy == 'ParameterServer') == has(self.parameterServers)",
                "parameterServers is required with strategy ParameterServer, and only allowed there",
            ),
            ("self.strategy != 'ParameterServer' || self.mode != 'Live'", "mode Live needs strategy AllReduce"),
            ("self.strategy == oldSelf.strategy", "strategy is immutable"),
            ("(self.mode == 'Tasks') == (oldSelf.mode == 'Tasks')", "mode cannot change from or to Tasks"),
            ("!has(self.priority) || has(self.queue)", "priority has no effect without queue"),
            ("!has(self.queue) || self.strategy == 'AllReduce'", "queue needs strategy AllReduce"),
            (
                "has(self.queue) == has(oldSelf.queue) && (!has(self.queue) || self.queue == oldSelf.queue)",
                "queue is immutable",
            ),
            (
                (
                    "has(self.managedBy) == has(oldSelf.managedBy) && "
                    "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)"
                ),
                "managedBy is immutable",
            ),
        ),
    )


def _mode() -> Schema:
    about = (
        "The effect of a change on workers: Live lets them go on, Relaunch starts all of them again. Auto: Relaunch "
        "until a worker joins by itself. Tasks: workers take shards of a queue; with strategy ParameterServer, the "
        "servers are Pliant's own."
    )
    return _choice("Auto", "Live", "Relaunch", "Tasks", about=about)


def _template() -> Schema:
    """Return the schema of a PodTemplateSpec: only what no pod can do without. The API server checks each pod."""
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    containers = {"type": "array", "minItems": 1, "items": {"type": "object", **kept}}
    about = "A PodTemplateSpec. Its first container runs `pliant run`. A change replaces pods one after another."
    pod = _object({"containers": containers}, ("containers",), **kept)
    return _object({"spec": pod}, ("spec",), **kept, description=about)


def _workers() -> Schema:
    sizes = {"type": "integer", "format": "int32", "minimum": 1, "maximum": SIZE_MAX}
    return _object(
        {
            "min": _integer(1, SIZE_MAX, about="The job waits below this number of workers."),
            "max": _integer(1, SIZE_MAX, about="The largest number of workers."),
            "target": _integer(
                1, SIZE_MAX, about="The number wanted; the scale subresource. The operator fills it once."
            ),
            "spares": _integer(0, 64, 0, "Workers beyond the target, kept warm."),
            "sizes": {
                "type": "array",
                "maxItems": 64,
                "x-kubernetes-list-type": "set",
                "items": sizes,
                "description": "The only sizes allowed; the target is rounded down to one of them.",
            },
            "processesPerPod": _integer(1, PROCESSES_MAX, 1, "Workers in each pod, one for each GPU as a rule."),
            "template": _template(),
        },
        ("min", "max", "template"),
        **_rules(
            ("self.min <= self.max", "min must not exceed max"),
            (
                "!has(self.target) || (self.target >= self.min && self.target <= self.max)",
                "target must lie between min and max",
            ),
            (
                (
                    "!has(self.sizes) || (self.sizes.exists(s, s == self.min) && "
                    "self.sizes.all(s, s >= self.min && s <= self.max))"
                ),
                "sizes must contain min and lie between min and max",
            ),
        ),
    )


def _servers() -> Schema:
    about = "Pods that keep the parameters, one server in each."
    return _object(
        {"count": _integer(1, SERVERS_MAX), "template": _template()}, ("count", "template"), description=about
    )


def _checkpoints() -> Schema:
    return _object(
        {
            "claimName": _text("An existing claim that all pods can mount."),
            "volumeClaim": _anything("A claim template `{spec: ...}`; the operator makes the claim NAME-checkpoints."),
            "onDelete": _choice("Retain", "Delete", about="What happens to the claim of volumeClaim with the job."),
            "everySeconds": _integer(1, default=600),
            "keep": _integer(1, 1000, 3),
        },
        **_rules(
            ("has(self.claimName) != has(self.volumeClaim)", "exactly one of claimName and volumeClaim is required")
        ),
    )


def _drain() -> Schema:
    about = "How pods leave."
    return _object(
        {
            "graceSeconds": _integer(5, 3600, 60, "The time that workers have to leave."),
            "blockEviction": _choice(
                "BelowMin", "Never", "Always", about="The evictions that the PodDisruptionBudget refuses."
            ),
        },
        default={},
        description=about,
    )


def _failure() -> Schema:
    codes = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 255}
    return _object(
        {
            "maxRestarts": _integer(
                0, default=3, about="Failures of user code that the job survives; disruptions are free."
            ),
            "restartWindowSeconds": _integer(60, default=3600, about="Older failures of pods do not count."),
            "fatalExitCodes": {
                "type": "array",
                "maxItems": 64,
                "items": codes,
                "description": "Exit codes of a pod's first container after which the job fails at once.",
            },
            "pendingSeconds": _integer(10, default=600, about="A pod that has not joined by then is given back."),
            "unreachableSeconds": _integer(10, default=60, about="Pods of a silent node are force-deleted after this."),
        },
        default={},
        description="What the job survives, and how long it waits.",
    )


# ------------------------------------------------------------------------------------------------------- status


def _status() -> Schema:
    number: Schema = {"type": "integer", "format": "int64"}
    seconds: Schema = {"type": "number"}
    time: Schema = {"type": "string", "format": "date-time"}
    counts = dict.fromkeys(("pods", "pending", "joining", "active", "spare", "draining", "granted"), number)
    reserved = _object({"role": {"type": "string"}, "index": number, "tier": {"type": "string"}})
    states = ["Suspended", "Starting", "Waiting", "Running", "Finished", "Failed", "Cancelled"]
    return _object(
        {
            "observedGeneration": number,
            "state": {"type": "string", "enum": states},
            "reason": {"type": "string", "maxLength": 256},
            "selector": {"type": "string"},
            "worldGeneration": number,
            "startTime": time,
            "completionTime": time,
            "completionSeconds": seconds,
            "activeSince": seconds,
            "activeSeconds": seconds,
            "heldUntil": seconds,
            "lastIndex": number,
            "reserved": {"type": "array", "items": reserved},
            "silent": {"type": "object", "additionalProperties": seconds},
            "coordinatorJob": _object({"store": {"type": "string"}, "createdAt": seconds}),
            "workers": _object(counts),
            "parameterServers": _object({"ready": number}),
            "restarts": _object(
                {
                    "counted": number,
                    "disruptions": number,
                    "recent": {"type": "array", "items": seconds},
                    "pods": {"type": "array", "items": {"type": "string"}},
                }
            ),
            "progress": _object({"step": number, "epoch": number, "percent": number, "seconds": seconds}),
            "checkpoint": _object({"step": number}),
            "conditions": _conditions(time, number),
        }
    )


def _conditions(time: Schema, number: Schema) -> Schema:
    item = _object(
        {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": number,
            "lastTransitionTime": time,
            "reason": {"type": "string", "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
        ("type", "status", "lastTransitionTime", "reason", "message"),
    )
    return {
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": item,
    }
