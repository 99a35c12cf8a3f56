"""Questions of access to the admin API, and their answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from cachefleet_core.pool.spec import PLURAL

MAX_TOKEN: Final = 16 * 1024


class Authorization(StrEnum):
    """The answer to a question; the value is a metric's label."""

    ALLOWED = "allowed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"


class AccessUnavailableError(Exception):
    """Access cannot be checked now; admin requests are refused meanwhile, routing needs no check."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A verb on a resource, as Kubernetes has them: who may do it there may do the corresponding thing here.

    An empty namespace means all that this control plane serves, an empty name all objects of a namespace.
    """

    verb: str
    namespace: str = ""
    name: str = ""
    resource: str = PLURAL
    """In the API group ``cachefleet.io``; "resource/subresource" where it is part of one."""

    def __str__(self) -> str:
        return f"{self.verb} " + "/".join(filter(None, (self.resource, self.namespace, self.name)))


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who may report as a worker; ``pod`` is the uid of its token's pod, "" outside of Kubernetes."""

    pod: str = ""


class AdminAuthorizer(Protocol):
    """Decides whether the bearer of ``token`` ("" without one) may; AccessUnavailableError where that is not known."""

    async def __call__(self, token: str, asked: Asked, /) -> Authorization: ...


def bearer(header: str) -> str:
    """The token of an Authorization header; "" where there is none or it cannot be valid."""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    sound = scheme.lower() == "bearer" and len(token) <= MAX_TOKEN and token.isascii() and token.isprintable()
    return token if sound and " " not in token else ""
