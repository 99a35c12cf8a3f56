"""``GET /admin/v1/findings``: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.findings import finding
from cachefleet_controlplane.admin.schemas import Schema


class Finding(Schema):
    """Something that is wrong or worth knowing."""

    severity: finding.Severity
    subject: str
    """A kind and, where there are several, a name: "pool default/qwen", "worker default/qwen/qwen-0#0", "store"."""
    reason: str
    """One word for programs."""
    message: str
    action: str
    """What to do."""
    docs: str
    """A page of the documentation with its anchor."""


class FindingList(Schema):
    """All findings, the most severe first; only those of severity info where all is well."""

    items: tuple[Finding, ...]


def findings_routes(found: Callable[[], list[finding.Finding]]) -> APIRouter:
    """The route ``GET /findings``."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.get("/findings", summary="What is wrong, and what to do")
    async def told() -> FindingList:
        return FindingList(items=tuple(Finding.model_validate(one) for one in found()))

    return router
