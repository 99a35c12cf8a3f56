"""Resumes an interrupted answer on another worker: what was produced of it, and what the other worker is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import COMPLETIONS_MAX_TOKENS, FIELD, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.attempts.resumable import appended, marked, rest_body, resumable
from cachefleet_controlplane.gateway.attempts.stream_join import Stopping, StreamJoiner
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInput
from cachefleet_controlplane.gateway.upstream.answer import error_code
from cachefleet_controlplane.gateway.upstream.client import Answer, Upstream
from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.routing.decision import Knowledge, Prompt
from cachefleet_controlplane.wire.json_members import READ_ERRORS, lax_bool
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.policy import PreemptionPolicy

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""How bytes that are no whole character are shown."""
WINDOW: Final = 32
"""Of the last ids, those that are turned to text to see whether they end in the midst of a character."""
MAX_DROPPED: Final = 8
"""A character has no more tokens than that."""

Text = Callable[[Sequence[int]], Awaitable[str | None]]
"""Turns ids to text; None where nobody can."""

_texts = msgspec.json.Decoder(str | list[str] | None)
_number = msgspec.json.Decoder(int | None, strict=False)


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """What a request allows: how many hand-backs, how many tokens in all (None: as many as fit), where it stops."""

    hand_backs: int
    tokens: int | None
    stopping: Stopping

    @classmethod
    def of(cls, routing_input: RoutingInput, *, parsed: bool) -> ResumeLimits | None:
        """None where nobody else can go on with it, or a caller wants to hear of a worker's refusal itself."""
        ask, gate = routing_input.ask, routing_input.gate
        if gate.callers and gate.own:
            return None
        if gate.own:  # it is ours to act upon
            ask = replace(ask, fields={name: raw for name, raw in ask.fields.items() if name != FIELD})
        stops = _stops(ask.fields.get("stop"))
        if stops is None or not resumable(ask, parsed=parsed):
            return None
        try:
            bound = _bound(ask)
        except READ_ERRORS:  # only the engine knows what that is
            return None
        included = lax_bool(ask.fields.get("include_stop_str_in_output"))
        allowed = [
            pool.spec.preemption.max_hand_backs
            for pool in routing_input.model.declared
            if pool.spec.preemption.policy is PreemptionPolicy.HAND_BACK
        ]
        return cls(min(allowed, default=0), bound, Stopping(stops, included))


class Resumption:
    """Follows one answer from worker to worker. ``routing_input`` is what to decide on and send next."""

    @classmethod
    def of(cls, fleet: Fleet, routing_input: RoutingInput) -> Resumption:
        parsed = any(hello.profile.reasoning_parser for hello in fleet.announced(routing_input.model.name))
        return cls(fleet, routing_input, ResumeLimits.of(routing_input, parsed=parsed))

    def __init__(self, fleet: Fleet, routing_input: RoutingInput, limits: ResumeLimits | None) -> None:
        self._fleet = fleet
        self._limits = limits
        self._first = routing_input
        self._times = 0
        self._whole = b""
        self.joiner = None if limits is None else StreamJoiner(limits.stopping)
        self.routing_input = self._with_mark(routing_input)

    @property
    def resumable(self) -> bool:
        """Another worker can go on with what one hands back."""
        return self.joiner is not None

    @property
    def resumed(self) -> bool:
        """Another worker has produced some of the answer."""
        return bool(self._times)

    @property
    def path(self) -> str:
        """Where the next worker is asked."""
        return Endpoint.COMPLETIONS if self._times else self._first.ask.endpoint

    @property
    def stopped(self) -> bool:
        """The answer is at its end, whatever its worker still sends."""
        return self.joiner is not None and self.joiner.stopped

    def relayed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """What there is to relay for a worker's events."""
        joiner = self.joiner
        return events if joiner is None else [each for event in events for each in joiner.feed(event)]

    def breaks(self, events: Sequence[bytes]) -> bool:
        """The worker says that it has failed, and another one can go on."""
        return self.survives and any(error_code(event) >= 500 for event in events)

    def outcome(self, of: Outcome) -> Outcome:
        """What the end of a worker's stream means."""
        if of is Outcome.FINISHED and self._handed_back:
            return Outcome.HANDED_BACK
        return Outcome.CUT_OFF if of is Outcome.LOST and self.survives else of

    def takes_back(self, answer: Answer | None) -> bool:
        """Note a whole answer; whether its worker gave up before its end."""
        if self.joiner is None or answer is None or answer.status != 200:
            return False
        try:
            self._whole = self.joiner.whole(answer.body)
        except (msgspec.DecodeError, KeyError, ValueError):  # it is none of vLLM's; nobody goes on with it
            return False
        return self._handed_back and not self.joiner.stopped

    def joined(self, answer: Answer) -> Answer:
        """The last worker's whole answer with what others said before it."""
        return replace(answer, body=self._whole) if self._times and answer.status == 200 else answer

    @property
    def _handed_back(self) -> bool:
        return self.joiner is not None and self.joiner.handed_back

    @property
    def survives(self) -> bool:
        """Should the connection break now, another worker can go on: all text of what was produced has come."""
        joiner, limits = self.joiner, self._limits
        if joiner is None or limits is None or not joiner.can_resume or joiner.ended:
            return False
        return limits.stopping.included or not limits.stopping.stops

    async def go_on(self, text: Text) -> bool:
        """Make ``routing_input`` the rest of the answer; False where it cannot be had."""
        joiner = self.joiner
        if joiner is None or not joiner.can_resume:
            return False
        kept = await kept_ids(joiner.produced, text)
        if kept is None:
            return False
        joiner.resume(kept)
        if not joiner.prompt_ids:  # they were told, but not as ids
            return False
        self._times += 1
        self.routing_input = self._with_mark(self._rest(joiner))
        return True

    def _rest(self, joiner: StreamJoiner) -> RoutingInput:
        prompt_ids, produced = list(joiner.prompt_ids), joiner.ids
        longest = self._first.model.max_model_len
        bounds = [self._limits.tokens if self._limits else None, longest and longest - len(prompt_ids)]
        budget = min((bound for bound in bounds if bound is not None), default=len(produced) + 1) - len(produced)
        body = rest_body(self._first.body, prompt_ids=prompt_ids, produced=produced, budget=max(1, budget))
        prompt = self._prompt([*prompt_ids, *produced], budget)
        return replace(self._first, body=body, prompt=prompt)

    def _prompt(self, ids: list[int], budget: int) -> Prompt:
        """Keys of what was produced follow those of the prompt: the first worker may hold its blocks still."""
        first = self._first.prompt
        keyer = self._fleet.keyer(self._first.model.name, salt=self._first.salt)
        if keyer is None or not first.keys:
            return replace(first, tokens=len(ids), max_tokens=budget)
        keys = keyer.packed_keys(ids)
        return Prompt(len(ids), keys, keyer.block_size, budget, Knowledge.EXACT)

    def _with_mark(self, routing_input: RoutingInput) -> RoutingInput:
        """The last worker it may be given to is not told that it may hand it back."""
        if self._times >= self._allowed:
            return routing_input
        plain = (
            not self._times and "vllm_xargs" not in routing_input.ask.fields
        )  # as nearly all: it need not be read again
        body, members = appended(routing_input.body, routing_input.sent) if plain else marked(routing_input.body)
        return replace(routing_input, body=body, sent=members)

    @property
    def _allowed(self) -> int:
        return self._limits.hand_backs if self._limits else 0


async def kept_ids(produced: Sequence[int], text: Text) -> int | None:
    """How many of the ids produced say whole characters; None where nobody can tell.

    A worker that goes on in the midst of a character would say everything before it once more.
    """
    for dropped in range(min(len(produced), MAX_DROPPED) + 1):
        end = len(produced) - dropped
        said = await text(produced[max(0, end - WINDOW) : end]) if end else ""
        if said is None or not said.endswith(REPLACEMENT):
            return None if said is None else end
    return len(produced)


def _stops(raw: Raw | None) -> list[str] | None:
    """None for what the engine will refuse."""
    if raw is None:
        return []
    try:
        given = _texts.decode(raw)
    except READ_ERRORS:
        return None
    return [given] if isinstance(given, str) else given or []


def _bound(ask: RequestInfo) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if ask.endpoint is Endpoint.CHAT else ("max_tokens",)
    for name in names:
        number = _count(ask.fields.get(name))
        if number is not None:
            return number
    return COMPLETIONS_MAX_TOKENS if ask.endpoint is Endpoint.COMPLETIONS else None


def _count(raw: Raw | None) -> int | None:
    """As the engine reads it, which takes 12.0 and "12" for 12. READ_ERRORS."""
    number: int | None = None if raw is None else _number.decode(raw)
    return number


PATH: Final = "/detokenize"
SECONDS: Final = 5.0
_JSON: Final = (("content-type", "application/json"),)
WORKERS: Final = 3
"""Asked one after the other."""


class _Text(Struct, frozen=True):
    prompt: str


_text = msgspec.json.Decoder(_Text)


def detokenizer(
    fleet: Fleet, upstream: Upstream, credentials: Credentials, *, model: ServedModel
) -> Callable[[Sequence[int]], Awaitable[str | None]]:
    """Gives the text of ids; None where no worker of the model tells."""

    async def text(ids: Sequence[int]) -> str | None:
        body = msgspec.json.encode({"model": model.upstream, "tokens": list(ids)})
        for worker in fleet.renderers(model.name)[:WORKERS]:
            headers = [*_JSON, ("authorization", f"Bearer {credentials.of(worker.url)}")]
            opened = await upstream.ask(worker.url, PATH, body, headers=headers, seconds=SECONDS)
            if opened.answer is not None and opened.answer.status == 200:
                try:
                    return _text.decode(opened.answer.body).prompt
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
        return None

    return text
