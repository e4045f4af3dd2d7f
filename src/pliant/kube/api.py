"""Calls to the Kubernetes API server, with objects as plain dictionaries.

lightkube finds the server and the credentials, in a pod and outside. The calls carry preconditions, which its own
methods do not offer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from pliant.errors import BadInput, PliantError
from pliant.kube.manifests.companions import is_own
from pliant.kube.names import GROUP, JOB_LABEL, PLURAL, VERSION

Object = dict[str, Any]

ANSWER_S = 10.0
WATCH_S = 240
PAGE = 500
ELASTIC_JOBS = f"/apis/{GROUP}/{VERSION}"
PATHS = {
    "Service": "/api/v1",
    "Secret": "/api/v1",
    "PersistentVolumeClaim": "/api/v1",
    "NetworkPolicy": "/apis/networking.k8s.io/v1",
    "PodDisruptionBudget": "/apis/policy/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
CHANGEABLE = ("PodDisruptionBudget",)  # objects that follow the job's settings


class ApiRefused(PliantError):
    """The API server refused a call. `status` is that of HTTP, `reason` Kubernetes' own word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NameTaken(ApiRefused):
    """There is an object of another owner under the name of a wanted one."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        super().__init__(
            409, "NameTaken", f"The {kind} {name} belongs to another owner. Delete it, or rename the ElasticJob."
        )


class ApiUnreachable(PliantError):
    """The API server did not answer, or not in time. The call may have been carried out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole list, and the revision at which it was read."""

    items: tuple[Object, ...]
    revision: int


class KubeApi:
    """The API server. Methods raise ApiRefused and ApiUnreachable."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self.on_call: Callable[[str, str], None] = lambda _method, _status: None  # after each call

    @classmethod
    def connect(cls, kubeconfig: str | None = None) -> KubeApi:
        """Connect by the pod's service account, KUBECONFIG, or the file of kubectl."""
        try:
            config = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
            single = config.get()
            if single is None:
                raise BadInput("The kubeconfig has no current context. Set one with `kubectl config use-context`.")
            return cls(client_adapter.Client(single, client_adapter.ConnectionParams(timeout=httpx2.Timeout(ANSWER_S))))
        except ConfigError as error:
            raise BadInput(f"No Kubernetes cluster is configured: {error}. Run in a pod, or set KUBECONFIG.") from error

    def close(self) -> None:
        self._client.close()

    # ---------------------------------------------------------------------------------------------- reading

    def jobs(self) -> Listing:
        return self._list(f"{ELASTIC_JOBS}/{PLURAL}")

    def pods(self) -> Listing:
        return self._list("/api/v1/pods", labelSelector=JOB_LABEL)

    def nodes(self) -> Listing:
        return self._list("/api/v1/nodes")

    def _list(self, path: str, **params: str) -> Listing:
        """Return all pages of a list. A page that fails fails the whole list."""
        items: list[Object] = []
        query: dict[str, str] = {**params, "limit": str(PAGE)}
        while True:
            page = self._call("GET", path, params=query)
            items += page.get("items") or []
            meta = page["metadata"]
            if not meta.get("continue"):
                return Listing(tuple(items), int(meta["resourceVersion"]))
            query["continue"] = meta["continue"]

    def revision(self, path: str) -> int:
        """Return the newest revision of a list, for a watch to start from."""
        return int(self._call("GET", path, params={"limit": "1"})["metadata"]["resourceVersion"])

    def watch(self, path: str, revision: int, **params: str) -> Iterator[str]:
        """Yield the revision of each change after a revision. Ends when the server ends it."""
        query = {**params, "watch": "true", "resourceVersion": str(revision), "timeoutSeconds": str(WATCH_S)}
        timeout = httpx2.Timeout(ANSWER_S, read=WATCH_S + ANSWER_S)
        try:
            with self._client.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                for line in answer.iter_lines():
                    if line:
                        yield str(json.loads(line)["object"].get("metadata", {}).get("resourceVersion", ""))
        except (httpx2.HTTPError, ValueError) as error:
            raise ApiUnreachable(f"The watch of {path} broke: {error}") from error

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return self._call("GET", _path(kind, namespace, name))
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None

    def job_pods(self, namespace: str, job: str) -> list[str]:
        """Return the names of a job's pods."""
        found = self._list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{JOB_LABEL}={job}")
        return [item["metadata"]["name"] for item in found.items]

    def logs(self, namespace: str, pod: str, lines: int) -> str:
        query = {"tailLines": str(lines)}
        return self._request("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log", params=query).text

    # ---------------------------------------------------------------------------------------------- writing

    def create(self, manifest: Mapping[str, Any]) -> bool:
        """Create an object. Return False if one of that name exists."""
        meta = manifest["metadata"]
        try:
            self._call("POST", _path(manifest["kind"], meta["namespace"]), body=manifest)
        except ApiRefused as error:
            if error.reason != "AlreadyExists":
                raise
            return False
        return True

    def ensure(self, manifest: Mapping[str, Any]) -> None:
        """Create an object. Change one that exists where it follows the job's settings. Raises NameTaken."""
        kind, meta = manifest["kind"], manifest["metadata"]
        if self.create_own(manifest) or kind not in CHANGEABLE:
            return
        self._patch(_path(kind, meta["namespace"], meta["name"]), {"spec": manifest["spec"]})

    def create_own(self, manifest: Mapping[str, Any]) -> bool:
        """Create an object of a job. Return False if the job has it; raise NameTaken if it is of another owner."""
        if self.create(manifest):
            return True
        self.find_own(manifest)
        return False

    def find_own(self, manifest: Mapping[str, Any]) -> Object | None:
        """Return an object of a job as it is; None if there is none. Raises NameTaken."""
        meta = manifest["metadata"]
        found = self.get(manifest["kind"], meta["namespace"], meta["name"])
        if found is not None and not is_own(found, manifest):
            raise NameTaken(manifest)
        return found

    def delete_pod(
        self, namespace: str, name: str, uid: str, revision: int | None = None, *, force: bool = False
    ) -> None:
        """Delete one particular pod. A pod that is gone, or is another one, is left alone."""
        conditions: Object = {"uid": uid}
        if revision is not None:
            conditions["resourceVersion"] = str(revision)
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        if force:
            body["gracePeriodSeconds"] = 0
        try:
            self._call("DELETE", _path("Pod", namespace, name), body=body)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete an object, which may be gone already."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            self._call("DELETE", _path(kind, namespace, name), body=body)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to one particular pod, unless it is gone."""
        try:
            self._patch(_path("Pod", namespace, name), {"metadata": {"uid": uid, "annotations": annotations}})
        except ApiRefused as error:
            if error.status not in (404, 409, 422):
                raise

    def patch_job(self, namespace: str, name: str, patch: Mapping[str, Any], *, part: str = "") -> Object:
        """Change an ElasticJob, or a subresource such as `status`."""
        path = _path("ElasticJob", namespace, name)
        return self._patch(f"{path}/{part}" if part else path, patch)

    def replace_status(self, item: Mapping[str, Any]) -> Object:
        """Write a whole status. Refused with 409 if the object changed since it was read."""
        meta = item["metadata"]
        return self._call("PUT", f"{_path('ElasticJob', meta['namespace'], meta['name'])}/status", body=item)

    def _patch(self, path: str, patch: Mapping[str, Any]) -> Object:
        return self._call("PATCH", path, body=patch, content="application/merge-patch+json")

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Object:
        answer = self._request(method, path, params=params, body=body, content=content)
        try:
            found = answer.json()
        except ValueError as error:
            raise ApiUnreachable(f"The API server sent no JSON for {path}.") from error
        return found if isinstance(found, dict) else {}

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> httpx2.Response:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": content}
        try:
            answer = self._client.request(method, path, params=params, content=data, headers=headers)
        except httpx2.HTTPError as error:
            self.on_call(method, "none")
            raise ApiUnreachable(
                f"The Kubernetes API server does not answer: {str(error) or type(error).__name__}"
            ) from error
        self.on_call(method, str(answer.status_code))
        if answer.status_code >= 400:
            raise _refusal(answer)
        return answer


def _refusal(answer: httpx2.Response) -> ApiRefused:
    try:
        found = answer.json()
        reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", answer.text[:200]
    return ApiRefused(answer.status_code, reason, message or f"status {answer.status_code}")


def _path(kind: str, namespace: str, name: str | None = None) -> str:
    if kind == "ElasticJob":
        root, plural = ELASTIC_JOBS, PLURAL
    else:
        root, plural = PATHS.get(kind, "/api/v1"), PLURALS.get(kind, f"{kind.lower()}s")
    path = f"{root}/namespaces/{namespace}/{plural}"
    return path if name is None else f"{path}/{name}"
