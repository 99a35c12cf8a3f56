"""One request and the engines that ended during its attempts: what it has lost, and whether it may be sent again."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.engine_deaths.death_ledger import FatalVerdict
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import EngineDeaths, Subject
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.wire.errors import ApiError

FATAL_REQUEST: Final = "fatal_request"
DOUBTED_REQUEST: Final = "fatal_request_suspected"
RETRY_AFTER_SECONDS: Final = 10
_NO_RETRY: Final = {"x-should-retry": "false"}
"""What the official clients heed, which else ask again by themselves."""
_FATAL: Final = (
    "Two engines ended while they computed this request, so it is refused for some minutes. "
    "Do not send it again as it is; tell your operator the decision's id."
)
_DOUBTED: Final = (
    "Two engines ended while they computed this request among others, and whose fault it was is not known yet. "
    f"Try again in {RETRY_AFTER_SECONDS} s."
)


class ExposedRequest:
    """One request of ``subject``, which came at ``arrived``; ``body`` is what workers are sent at first."""

    __slots__ = ("_arrived", "_body", "_deaths", "_endpoint", "_hash", "_produced", "_subject", "_verdict")

    def __init__(self, deaths: EngineDeaths, endpoint: str, body: bytes, subject: Subject, *, arrived: float) -> None:
        self._deaths = deaths
        self._endpoint = endpoint
        self._body: bytes | None = body
        self._hash = 0
        self._subject = subject
        self._arrived = arrived
        self._produced = False
        self._verdict = FatalVerdict.FREE

    @property
    def digest(self) -> bytes:
        """The digest of the body."""
        return self._deaths.digest(self._endpoint, self._hash if self._body is None else hash(self._body))

    def begun(self) -> None:
        """The first token is there: keep no copy of the body, only its hash."""
        if self._body is not None:
            self._hash, self._body = hash(self._body), None
        self._produced = True
        self._answered(whole=False)

    def ended(self) -> None:
        """An engine has given all of the answer, or refused the request by itself."""
        self._answered(whole=True)

    def _answered(self, *, whole: bool) -> None:
        if not self._deaths.empty:
            self._deaths.answered(self.digest, whole=whole)
            self._deaths.leave(self)

    async def lost(self, chosen: Decision, *, began: float, produced: bool) -> bool:
        """Whether the engine has ended that lost an attempt sent at ``began``; then it is noted as a death.

        ``produced``: it will have produced a token that is not here. A worker that was told to go is expected to end.
        """
        unforeseen = self._deaths.serving(chosen.full_name)
        if not await self._deaths.died(chosen.url):
            return False
        if unforeseen:
            digest, produced = self.digest, produced or self._produced
            self._deaths.lost(chosen.full_name, digest, began=began, produced=produced)
            self._verdict = await self._deaths.verdict(digest, self._subject)
        return True

    async def may_go(self) -> bool:
        """Whether it may be sent to an engine now; waits for its turn where others are in doubt as well."""
        if self._deaths.empty:
            return True
        self._verdict = await self._deaths.turn(self.digest, self._subject, self, arrived=self._arrived)
        return self._verdict is FatalVerdict.FREE

    @property
    def refusal(self) -> str:
        """What metrics call it where it may not be sent: refused, or doubted."""
        return "refused" if self._verdict is FatalVerdict.FATAL else "doubted"

    def error(self) -> ApiError | None:
        """The client's error where it may not be sent; None where it may, as nearly always."""
        if self._verdict is FatalVerdict.FATAL:
            return ApiError(422, _FATAL, code=FATAL_REQUEST, headers=_NO_RETRY)
        if self._verdict is FatalVerdict.DOUBTFUL:
            return ApiError(503, _DOUBTED, code=DOUBTED_REQUEST, headers={"retry-after": str(RETRY_AFTER_SECONDS)})
        return None

    def close(self) -> None:
        """The request is over, however."""
        self._deaths.leave(self)
