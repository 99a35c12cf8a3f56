"""``/admin/v1/certificates`` and ``/admin/v1/certify``: which render profiles are certified, and examining them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

from fastapi import APIRouter, HTTPException
from pydantic import ConfigDict, Field

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.gateway.converse.records import Certificate

MAX_CHATS: Final = 200
_REFUSALS: Final = refusals(404, 409)


class Certified(Schema):
    """Whether a render profile keeps what continuing a prompt by its handle needs, and what was examined."""

    profile: str
    """Fingerprint of the render profile."""
    contract: str
    """Fingerprint of the index contract."""
    model: str
    certified: bool
    reason: str
    """Why not; empty where it is."""
    at: datetime
    version: int
    """Of the examination."""
    counts: Mapping[str, int]


class CertificateList(Schema):
    """All that is known, by model."""

    items: tuple[Certified, ...]


class Examination(Schema):
    """What to examine."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str | None, Field(min_length=1, max_length=512)] = None
    """A served model, or namespace/name; all of them where left out."""
    pool: Annotated[str | None, Field(min_length=1, max_length=512)] = None
    """The model of this pool, as namespace/name."""
    chats: Annotated[int, Field(ge=1, le=MAX_CHATS)] = 20
    """Random conversations for each profile."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1


class Certifier(Protocol):
    """What the routes need of the examiner of render profiles."""

    @property
    def busy(self) -> bool:
        """Whether an examination is under way."""
        ...

    def all_certificates(self) -> list[Certificate]:
        """The latest certificate of each render profile."""
        ...

    async def examine(self, *, model: str | None, pool: str | None, chats: int, seed: int) -> list[Certificate]:
        """Examine render profiles now; their certificates. LookupError for a model or pool that is not served."""
        ...


def certificate_routes(certifier: Certifier) -> APIRouter:
    """The routes ``/certificates`` and ``/certify``."""
    router = APIRouter(tags=["continuation"], responses=ERRORS)

    @router.get("/certificates", summary="Certified render profiles, and those refused")
    async def certificates() -> CertificateList:
        return CertificateList(items=tuple(shown(one) for one in certifier.all_certificates()))

    @router.post("/certify", summary="Examine render profiles now", responses=_REFUSALS)
    async def certify(wanted: Examination) -> CertificateList:
        if certifier.busy:
            raise HTTPException(409, "an examination is under way")
        try:
            made = await certifier.examine(model=wanted.model, pool=wanted.pool, chats=wanted.chats, seed=wanted.seed)
        except LookupError as error:
            raise HTTPException(404, str(error)) from error
        return CertificateList(items=tuple(shown(one) for one in made))

    return router


def shown(certificate: Certificate) -> Certified:
    """A certificate as the API shows it."""
    names = [name for name in Certified.model_fields if name != "at"]
    at = datetime.fromtimestamp(certificate.at, UTC)
    return Certified.model_validate({name: getattr(certificate, name) for name in names} | {"at": at})
