"""The actions of a plan, and their execution: one API request each, only while this process leads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cachefleet_core.pool.spec import KIND
from cachefleet_operator.kube.foreign_edits import Edit
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.weights_volumes import image_volumes
from cachefleet_operator.status.events import Quiet
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError, RetryableError

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object that is never overwritten."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace an object, on condition of the version in the manifest."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a manifest; ``undoes`` what somebody else changed, where that is why."""

    manifest: Manifest
    undoes: Edit | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write parts of an object whole, on condition of the version in the manifest: what others added goes."""

    manifest: Manifest
    undoes: Edit | None = None


@dataclass(frozen=True, slots=True)
class Annotate:
    """Annotate or label a pod; that the pod is gone or the request refused is no failure."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Scale:
    """Scale a ReplicaSet; that it is gone or the request refused is no failure."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours that nothing needs any more; that it is gone is no failure."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Emit:
    """Create a Kubernetes event; that it exists already is no failure."""

    event: Manifest


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the operator's fields of a pool's status."""

    manifest: Manifest


Action = Create | Replace | Apply | Rewrite | Annotate | Scale | Delete | Emit | WriteStatus


def reason_of(action: Action) -> str:
    """Reason of an action for the log: a status's Ready condition, or the field another writer changed; else ""."""
    if isinstance(action, Apply | Rewrite) and action.undoes:
        return f"{action.undoes.field} was written by {action.undoes.manager}"
    if not isinstance(action, WriteStatus):
        return ""
    conditions = action.manifest["status"].get("conditions") or ()
    ready = next((each for each in conditions if each["type"] == "Ready"), None)
    return f"Ready {ready['status']}, {ready['reason']}" if ready else ""


def undone(actions: Sequence[Action]) -> dict[Ref, Edit]:
    """What of others these actions undo, by object."""
    return {Ref.of(each.manifest): each.undoes for each in actions if isinstance(each, Apply) and each.undoes}


log = logging.getLogger(__name__)


_NO_DRY_RUN: Final = "does not support dry run"
"""Words of the API server about a webhook that may have side effects."""
_OLD_CRD: Final = (f"Kind={KIND})", "field not declared in schema")


def refusal(error: RefusedError) -> str:
    """The API server's message, and what to do where its CRD is of another version."""
    old = all(words in error.message for words in _OLD_CRD)
    return error.message + ("; the CRD is of another version: kubectl apply -f crds/" if old else "")


class ImageVolumesError(Exception):
    """The API server drops volumes made of images; the message says what it needs."""


_NO_VOLUME: Final = "must specify a volume type"
"""Words of the API server about a volume of which it has dropped all it knows nothing of."""
_NEEDED: Final = (
    "the API server drops volumes made of images (spec.model.source or an adapter's is oci://...): it needs Kubernetes "
    "1.35, or 1.33 with the feature gate ImageVolume on, there and on its nodes; else name a folder or a hub id"
)


def mounts_images(actions: Sequence[Action]) -> bool:
    """Whether pods with volumes made of images are to be applied."""
    return any(_images(action) for action in actions)


def _images(action: Action) -> frozenset[str]:
    return _images_of(action.manifest) if isinstance(action, Apply) else frozenset()


def _images_of(manifest: Manifest) -> frozenset[str]:
    return image_volumes((manifest.get("spec") or {}).get("template") or {})


class NotLeadingError(Exception):
    """The Lease is no longer held: nothing may be written."""


class WriteApi(Protocol):
    """The API requests of an applier."""

    async def create(self, manifest: Object) -> Object: ...
    async def replace(self, manifest: Object) -> Object: ...
    async def rewrite(self, manifest: Object) -> Object: ...
    async def annotate(self, manifest: Object) -> Object: ...
    async def scale(self, manifest: Object) -> Object: ...
    async def delete(self, manifest: Object) -> Object: ...
    async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object: ...


class Applier:
    """Carries out actions; ``leads`` is checked before each request."""

    def __init__(self, api: WriteApi, leads: Callable[[], bool], quiet: Quiet | None = None) -> None:
        self._api = api
        self._leads = leads
        self._quiet = quiet or Quiet(time.monotonic)

    async def carry_out(self, actions: Sequence[Action]) -> list[tuple[Object, Object]]:
        """Carry out actions in order; the first failure ends it, and a later plan does what is left. Returns the
        applied manifests, each with the resulting object.
        """
        made = [(action, await self.act(action)) for action in actions]
        return [(action.manifest, after) for action, after in made if isinstance(action, Apply) and after]

    async def rehearse(self, actions: Sequence[Action]) -> None:
        """Have the API server check what these would apply, and keep nothing: of an edit that it refuses in one
        object, no other is touched. RefusedError, KubernetesError; ImageVolumesError where it would keep less than is
        applied. What needs a rewrite first cannot be checked.
        """
        rewritten = {Ref.of(action.manifest) for action in actions if isinstance(action, Rewrite)}
        for action in actions:
            if isinstance(action, Apply | WriteStatus) and Ref.of(action.manifest) not in rewritten:
                await self._rehearse(action)

    async def _rehearse(self, action: Apply | WriteStatus) -> None:
        part = "status" if isinstance(action, WriteStatus) else ""
        try:
            made = await self._api.apply(action.manifest, subresource=part, dry_run=True)
        except RefusedError as error:
            if _images(action) and _NO_VOLUME in error.message:
                raise ImageVolumesError(_NEEDED) from error
            if _NO_DRY_RUN not in error.message:
                raise
        else:
            if _images(action) - _images_of(made):
                raise ImageVolumesError(_NEEDED)

    async def act(self, action: Action) -> Object | None:
        """Carry out one action; returns the resulting object of an Apply, else None. NotLeadingError where the Lease is
        not held, KubernetesError where the request failed.
        """
        if not self._leads():
            raise NotLeadingError
        if isinstance(action, Emit) and not self._quiet.lets(action.event):
            return None
        manifest = action.event if isinstance(action, Emit) else action.manifest
        name, why = type(action).__name__, reason_of(action)
        log.info("%s %s%s", name, Ref.of(manifest), f": {why}" if why else "", extra={"action": name})
        return await self._send(action)

    async def _send(self, action: Action) -> Object | None:
        match action:
            case Create(manifest):
                await self._api.create(manifest)
            case Replace(manifest):
                await self._api.replace(manifest)
            case Rewrite(manifest):
                await self._api.rewrite(manifest)
            case Apply(manifest):
                return await self._api.apply(manifest)
            case Annotate() | Scale() | Delete():
                await self._tolerant(action)
            case Emit(event):
                await self._emit(event)
            case WriteStatus(manifest):
                await self._api.apply(manifest, subresource="status")
        return None

    async def _emit(self, event: Object) -> None:
        try:
            await self._api.create(event)
        except RetryableError as error:
            if error.reason != "AlreadyExists":
                raise
        except RefusedError as error:  # for instance by a quota; the status says the same
            log.warning("%s could not be told: %s", Ref.of(event), error)
        self._quiet.record(event)

    async def _tolerant(self, action: Annotate | Scale | Delete) -> None:
        verbs = {Annotate: self._api.annotate, Scale: self._api.scale, Delete: self._api.delete}
        try:
            await verbs[type(action)](action.manifest)
        except KubernetesError as error:
            # Another object of that name, or none. A refusal must not stop the actions that follow.
            if error.status != 409 and not isinstance(error, RefusedError):
                raise
            log.warning("%s could not be changed: %s", Ref.of(action.manifest), error)
