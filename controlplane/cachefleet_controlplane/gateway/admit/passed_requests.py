"""Requests for models of other control planes: passed on to their gateways as they came, and their answers passed back.

Nothing of them is decided or counted here: the control plane that serves the model judges the client's own key, its
tenant's limits and the body, and accounts for the answer. So a request is passed on also where this gateway would not
admit it. A request that a gateway has passed on is not passed on again: where two of them see pools differently, the
client is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.admit.model_lookup import ElsewhereError, model_header
from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.apis.audio_form import content_type_of, named_model
from cachefleet_controlplane.gateway.apis.request_info import SPEECH, RequestInfo
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AnswerStream
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.tenants.rate_limit_headers import without_limits
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import NAMES, Header
from cachefleet_controlplane.wire.http_exchange import Receive, Reply, Scope, while_present
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_core.environment.control_planes import ControlPlanes
from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE

PASSED_BY: Final = b"x-cachefleet-passed-by"
"""Header of a request that a gateway passes on: the name of its control plane."""
UNREACHABLE: Final = "control_plane_unreachable"
RETRY_SECONDS: Final = 5
UNADMITTED: Final = ""
"""Whose share of the budget of bodies those have that this gateway does not admit; no tenant has that name."""
_OF_ONE_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        # The client of the next hop says these; the body goes on decoded, and is to come back as it is.
        *(b"host", b"content-length", b"content-encoding", b"accept-encoding", b"expect", b"proxy-authorization"),
        PASSED_BY,
    }
)

_DISAGREE: Final = (
    "Control plane `{by}` has passed this request on to `{own}`, which takes model `{model}` to be of `{owner}`: they "
    "see different pools, or one of them has the other's address under a wrong name."
)
_DOWN: Final = "Control plane `{owner}`, which serves model `{model}`, {how}. Try again in {seconds} s."
_HOW: Final = {
    Outcome.UNREACHABLE: "cannot be reached",
    Outcome.SILENT: "does not answer in time",
    Outcome.CROWDED: "has given an answer for which there is no room now",
}


@dataclass(frozen=True, slots=True)
class OtherControlPlanes:
    """The name of this control plane, and where the gateways of others are."""

    own: str = DEFAULT_CONTROL_PLANE
    urls: ControlPlanes = field(default_factory=dict)


class KeptBody:
    """Parses a body, and keeps it until it is taken."""

    __slots__ = ("_body", "_parse")

    def __init__(self, parse: Callable[[bytes], RequestInfo]) -> None:
        self._parse = parse
        self._body = b""

    def __call__(self, body: bytes) -> RequestInfo:
        """Parse it. ApiError 400."""
        self._body = body
        return self._parse(body)

    def take(self) -> bytes:
        """Return the body, and keep it no longer."""
        body, self._body = self._body, b""
        return body


class _Named(msgspec.Struct):
    """The one member of a body that says who serves it."""

    model: str = ""


_named = msgspec.json.Decoder(_Named)


class PassedRequests:
    """Passes requests on; ``metrics`` counts them by control plane and outcome."""

    def __init__(
        self, others: OtherControlPlanes, fleet: Fleet, upstream: Upstream, bodies: RequestBodies, metrics: Metrics
    ) -> None:
        self._others = others
        self._fleet = fleet
        self._upstream = upstream
        self._bodies = bodies
        self._metrics = metrics

    async def unadmitted(self, scope: Scope, receive: Receive, reply: Reply, refusal: ApiError) -> None:
        """Pass on a request that is refused here. The ApiError ``refusal`` where its model is no other's."""
        if not can_be_passed(reply.native):
            raise refusal
        with self._bodies.share(UNADMITTED) as share:
            try:
                body = await self._bodies.read(scope, receive, share, bytes)
                model = model_header(scope["headers"]) or _model_of(scope, body)
            except (ApiError, *READ_ERRORS):
                raise refusal from None
            if (found := self._fleet.elsewhere(model)) is None:
                raise refusal
            await while_present(
                self.answer(scope, reply, body, ElsewhereError(model, found.control_plane)), receive, reply
            )

    async def answer(self, scope: Scope, reply: Reply, body: bytes, elsewhere: ElsewhereError) -> None:
        """Pass a request on and its answer back, which tells of its own control plane's limits and no others. ApiError
        421, or 503 where its control plane gives none.
        """
        reply.names = without_limits(reply.names)
        url = self._url(scope, elsewhere)
        opened = await self._upstream.open(
            url,
            _target(scope),
            body,
            headers=onward(scope["headers"], own=self._others.own, names=scope.get(NAMES, ())),
            beside=reply.native,
            gateway=True,
        )
        self._metrics.passed_on(elsewhere.control_plane, opened.outcome)
        answer, stream = opened.answer, opened.stream
        if answer is not None:
            await reply.whole(answer.status, answer.headers, answer.body)
        elif stream is not None:
            await _relay(stream, reply, elsewhere)
        else:
            raise _unanswered(elsewhere, opened.outcome)

    def _url(self, scope: Scope, elsewhere: ElsewhereError) -> str:
        """Base URL of the gateway to pass a request on to. ApiError 421 where there is none."""
        url, by = self._others.urls.get(elsewhere.control_plane), passed_by(scope["headers"])
        if by:
            words = {"by": by, "own": self._others.own, "model": elsewhere.model, "owner": elsewhere.control_plane}
            raise ElsewhereError(elsewhere.model, elsewhere.control_plane, _DISAGREE.format(**words))
        if url is None:
            raise elsewhere
        return url


async def _relay(stream: AnswerStream, reply: Reply, elsewhere: ElsewhereError) -> None:
    """Pass a stream on, each of its parts once the client has taken the one before."""
    try:
        await reply.start(stream.status, stream.headers)
        events, stream.first = stream.first, []
        while events or stream.outcome is None:
            await reply.write(b"".join(events))
            events = await stream.more()
    finally:
        stream.close()
    if stream.outcome is Outcome.FINISHED:
        await reply.end()
    else:
        await reply.broken(ApiError(502, f"The answer of control plane `{elsewhere.control_plane}` broke off."))


def _unanswered(elsewhere: ElsewhereError, outcome: Outcome) -> ApiError:
    how = _HOW.get(outcome, "did not answer")
    message = _DOWN.format(owner=elsewhere.control_plane, model=elsewhere.model, how=how, seconds=RETRY_SECONDS)
    return ApiError(503, message, code=UNREACHABLE, headers={"retry-after": str(RETRY_SECONDS)})


def can_be_passed(client: Any) -> bool:
    """Whether the answer to a native request can come from another gateway: not where Envoy is to send it, nor to a
    message on a WebSocket, which is no native request, as its gateway remembers the response before.
    """
    return client is not None and client.pick is None


def passed_by(headers: Iterable[Header]) -> str:
    """The name of the control plane that has passed a request on; "" where a client has sent it."""
    return next((value.decode("latin-1")[:64] for name, value in headers if name == PASSED_BY), "")


def onward(headers: Iterable[Header], *, own: str, names: Iterable[Header] = ()) -> list[tuple[str, str]]:
    """The headers with which the control plane ``own`` passes a request on: the client's, its key among them, but for
    those of one hop, and the ``names`` by which both gateways know the request.
    """
    given, named = list(headers), dict(names)
    hop = {part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")}
    kept = [(name, value) for name, value in given if name not in _OF_ONE_HOP and name not in hop and name not in named]
    return [(_text(name), _text(value)) for name, value in (*kept, *named.items(), (PASSED_BY, own.encode()))]


def _text(value: bytes) -> str:
    """Decoded as UTF-8, as it is encoded again; Latin-1 where it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _model_of(scope: Scope, body: bytes) -> str:
    """The model that a body names. READ_ERRORS; ApiError 400."""
    if scope["path"] in SPEECH:
        return named_model(body, content_type_of(scope["headers"]))
    return _named.decode(body).model


def _target(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return f"{scope['path']}?{query.decode('latin-1')}" if query else scope["path"]
