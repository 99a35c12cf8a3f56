"""Authorization by Kubernetes: TokenReview tells the user, SubjectAccessReview whether it may.

A token must be issued for our audience, and the server must confirm that it checked that. Answers are cached under the
token's SHA-256, never the token. While the API server is unreachable nobody new is let in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Asked, Authorization, Reporter
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.pool.spec import GROUP
from cachefleet_core.pool.worker_pods import is_of_pool
from cachefleet_core.report_frames import Hello
from cachefleet_runtime.expiring_cache import Expiring
from cachefleet_runtime.kubernetes import KubernetesApi, KubernetesError, Object
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

AUDIENCE: Final = "cachefleet"
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class ReviewBounds:
    """Seconds that answers are cached, and how many; seconds that one review may take, and how many run at once.

    The four times bound how long a right that was withdrawn, or a token that was ended, is still taken.
    """

    known_seconds: float = 30.0
    unknown_seconds: float = 10.0
    allow_seconds: float = 30.0
    deny_seconds: float = 10.0
    size: int = 4096
    request_seconds: float = 10.0
    at_once: int = 16


class Identity(msgspec.Struct, frozen=True):
    """The user of a token, as TokenReview gives it."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def pod(self) -> str:
        """The pod that a projected service account token is bound to; "" where it is bound to none."""
        return next(iter(self.extra.get(_POD_NAME, ())), "")

    @property
    def pod_uid(self) -> str:
        """The uid of that pod."""
        return next(iter(self.extra.get(_POD_UID, ())), "")

    @property
    def namespace(self) -> str:
        """The service account's namespace; "" for any other user."""
        match self.username.split(":"):
            case ["system", "serviceaccount", namespace, _]:
                return namespace
            case _:
                return ""


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool | None = None
    user: Identity | None = None
    audiences: tuple[str, ...] | None = None


class TokenReviewAuthorizer:
    """Checks agents (``reports``) and users of the admin API (``admin``) of the ``namespaces`` served; none: of all."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
        bounds: ReviewBounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._namespaces = tuple(namespaces) or ("",)
        self._bounds = bounds or ReviewBounds()
        self._slots = asyncio.Semaphore(self._bounds.at_once)
        self._identities: Expiring[bytes, Identity | Authorization] = Expiring(self._bounds.size, clock)
        self._judged: LruMap[bytes, str] = LruMap(self._bounds.size)
        self._answers: Expiring[tuple[bytes, Asked], Authorization] = Expiring(self._bounds.size, clock)

    async def agent(self, token: str) -> Authorization:
        """Whether the token is that of a pod in a namespace served, whatever worker it is.

        AccessUnavailableError where the API server does not answer.
        """
        identity = await self._identity(token)
        if identity is None:
            return Authorization.UNAUTHENTICATED
        served = "" in self._namespaces or identity.namespace in self._namespaces
        return Authorization.ALLOWED if identity.pod and identity.namespace and served else Authorization.FORBIDDEN

    async def reports(self, token: str, hello: Hello) -> Reporter | None:
        """A reporter where the token is that of the worker's own pod, which is of the pool it names.

        AccessUnavailableError where the API server does not answer.
        """
        try:
            identity = await self._identity(token)
        except AccessUnavailableError:
            self._metrics.auth(check="reports", outcome="unavailable")
            raise
        access = Authorization.UNAUTHENTICATED
        if identity is not None:
            access = Authorization.ALLOWED if _is_own(identity, hello) else Authorization.FORBIDDEN
        self._metrics.auth(check="reports", outcome=access)
        return Reporter(identity.pod_uid) if identity is not None and access is Authorization.ALLOWED else None

    async def admin(self, token: str, asked: Asked) -> Authorization:
        """An AdminAuthorizer: asks SubjectAccessReview in each namespace concerned."""
        try:
            identity = await self._identity(token)
            access = Authorization.UNAUTHENTICATED if identity is None else await self._may(token, identity, asked)
        except AccessUnavailableError:
            self._metrics.auth(check="admin", outcome="unavailable")
            raise
        if identity is not None:
            self._judged.put(_digest(token), identity.username)
        self._metrics.auth(check="admin", outcome=access)
        return access

    def user_of(self, token: str) -> str:
        """The name of a token's user, as remembered from when it was judged; "" where it is not.

        Right after ``admin`` it is, however long that took: who changes something is named.
        """
        return self._judged.get(_digest(token), "")

    async def _identity(self, token: str) -> Identity | None:
        if not token:
            return None
        key = _digest(token)
        known = self._identities.get(key)
        if known is None:
            known = _identity_of(await self._ask(_TOKEN_REVIEWS, {"token": token, "audiences": [AUDIENCE]}))
            sure = isinstance(known, Identity)
            seconds = self._bounds.known_seconds if sure else self._bounds.unknown_seconds
            self._identities.put(key, known, seconds=seconds)
        return known if isinstance(known, Identity) else None

    async def _may(self, token: str, identity: Identity, asked: Asked) -> Authorization:
        """For all namespaces, it must be allowed in each that is served."""
        spaces = [asked.namespace] if asked.namespace else self._namespaces
        for namespace in spaces:
            access = await self._may_in_namespace(token, identity, replace(asked, namespace=namespace))
            if access is not Authorization.ALLOWED:
                return access
        return Authorization.ALLOWED

    async def _may_in_namespace(self, token: str, identity: Identity, asked: Asked) -> Authorization:
        key = (_digest(token), asked)
        if (known := self._answers.get(key)) is not None:
            return known
        status = await self._ask(_ACCESS_REVIEWS, _access_review(identity, asked))
        allowed = status.get("allowed") is True
        seconds = self._bounds.allow_seconds if allowed else self._bounds.deny_seconds
        self._answers.put(key, Authorization.ALLOWED if allowed else Authorization.FORBIDDEN, seconds=seconds)
        return Authorization.ALLOWED if allowed else Authorization.FORBIDDEN

    async def _ask(self, path: str, spec: Object) -> Object:
        """The status of a review."""
        try:
            async with asyncio.timeout(self._bounds.request_seconds), self._slots:
                answer = await self._api.post(path, {"spec": spec}, seconds=self._bounds.request_seconds)
        except (KubernetesError, TimeoutError) as error:
            logger.warning("a token cannot be reviewed: %r", error)
            raise AccessUnavailableError("the Kubernetes API server does not answer reviews") from error
        status = answer.get("status")
        return status if isinstance(status, dict) else {}


def _is_own(identity: Identity, hello: Hello) -> bool:
    namespace, _, pool = hello.pool.partition("/")
    own = identity.pod == hello.worker and bool(identity.pod_uid) and identity.namespace == namespace
    return own and is_of_pool(identity.pod, pool)


def _identity_of(status: Object) -> Identity | Authorization:
    """The user, where the server is sure of it and has checked the audience."""
    try:
        found = msgspec.convert(status, _Status)
    except msgspec.ValidationError:
        return Authorization.UNAUTHENTICATED
    if found.authenticated is not True or AUDIENCE not in (found.audiences or ()):
        return Authorization.UNAUTHENTICATED
    return found.user or Authorization.UNAUTHENTICATED


def _access_review(identity: Identity, asked: Asked) -> Object:
    resource, _, part = asked.resource.partition("/")
    attributes = {"group": GROUP, "resource": resource, "verb": asked.verb, "namespace": asked.namespace}
    if part:
        attributes["subresource"] = part
    if asked.name:
        attributes["name"] = asked.name
    user = msgspec.to_builtins(identity)
    user["user"] = user.pop("username")
    return {**user, "resourceAttributes": attributes}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
