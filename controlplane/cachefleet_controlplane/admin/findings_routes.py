"""``GET /admin/v1/findings``: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from cachefleet_controlplane.admin.admin_openapi import ERRORS, answers
from cachefleet_controlplane.admin.answers.entity_tags import encoded
from cachefleet_controlplane.admin.findings.finding import Finding, FindingList


def findings_routes(find: Callable[[], list[Finding]]) -> APIRouter:
    """The route ``GET /findings``."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.get("/findings", summary="What is wrong, and what to do", responses=answers(FindingList))
    async def findings() -> Response:
        return encoded(FindingList(items=tuple(find())))

    return router
