"""The routes by which other routers ask the index, each behind the rights of the admin API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cachefleet_controlplane.admin.auth_middleware import BodyBound, Guard
from cachefleet_controlplane.admin.problem_responses import api_problem
from cachefleet_controlplane.index_queries.index_queries import IndexQueries
from cachefleet_controlplane.index_queries.query_shapes import (
    Found,
    overlap_query,
    overlap_scores,
    prefix_hits,
    prefix_query,
)
from cachefleet_controlplane.internal_auth.admin_rights import DECISIONS
from cachefleet_controlplane.internal_auth.authorizer import AdminAuthorizer, Asked
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS

MAX_BYTES: Final = 8 * 1024 * 1024
"""The longest query: a million token ids."""

T = TypeVar("T")
Answer = Callable[[bytes], Awaitable[object]]
_encode = msgspec.json.encode


def query_routes(
    queries: IndexQueries, *, authorize: AdminAuthorizer, user_of: Callable[[str], str], max_bytes: int = MAX_BYTES
) -> list[Route]:
    """``POST /overlap_scores`` and ``POST /query``, for whoever may list decisions."""

    def guarded(answer: Answer) -> ASGIApp:
        return Guard(BodyBound(_Endpoint(answer), max_bytes), authorize, user_of, question=_question)

    return [Route(path, guarded(answer), methods=["POST"]) for path, answer in _answers(queries)]


def _question(_method: str, _path: str) -> Asked:
    """Asking the index is as asking for a decision that is not carried out."""
    return Asked("list", resource=DECISIONS)


def _answers(queries: IndexQueries) -> Iterator[tuple[str, Answer]]:
    async def overlap(body: bytes) -> object:
        asked = _decoded(overlap_query, body)
        asked.check()
        return overlap_scores(await queries.find(asked.model, asked.token_ids, asked.tenant_id))

    async def prefix(body: bytes) -> object:
        asked = _decoded(prefix_query, body)
        asked.check()
        found: Found = await queries.find(asked.model, asked.token_ids, asked.tenant_id, block_size=asked.block_size)
        return prefix_hits(found, asked.tenant_id, asked.instance_id)

    yield "/overlap_scores", overlap
    yield "/query", prefix


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """What a body asks. ApiError 400 with the field that is wrong."""
    try:
        return decoder.decode(body)
    except READ_ERRORS as error:
        raise ApiError(400, f"The body is not such a query: {error}.") from error


class _Endpoint:
    """Answers JSON with JSON; refusals as the admin API does."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's."""
        request = Request(scope, receive)
        try:
            content = _encode(await self._answer(await request.body()))
            response: Response = Response(content, media_type="application/json")
        except ApiError as error:
            response = await api_problem(request, error)
        await response(scope, receive, send)
