"""Resumes an interrupted answer on another worker: what was produced of it, and what the other worker is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from cachefleet_native import KeptBytes
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.request.replay_eligibility import Unresumed
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.request.resume_eligibility import carried, marked, rest_body, unmarked
from cachefleet_controlplane.gateway.retry.detokenizer import Text, kept_ids
from cachefleet_controlplane.gateway.retry.stream_join import Stopping, StreamJoiner
from cachefleet_controlplane.gateway.retry.stream_replay import StreamReplay
from cachefleet_controlplane.gateway.send.answers.answer import error_code
from cachefleet_controlplane.gateway.send.answers.produced_tokens import Name, aborts, may_give_up
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.gateway.send.worker_call import Trail
from cachefleet_controlplane.routing.decision import Knowledge, Prompt

MAX_ABORTS: Final = 3
"""How often another worker goes on with an answer whose engine gave it up."""


class Resumption:
    """Follows one answer from worker to worker. ``request`` is what to decide on and send next."""

    def __init__(self, fleet: Fleet, request: Request, kept: KeptBytes) -> None:
        self._fleet = fleet
        self._replay = StreamReplay(request.replay, kept) if request.replay is not None else None
        self._limits = request.limits
        self._first = self.request = request
        self._times = 0
        self._moves = 0
        """Of these, how often since its worker drained: workers may go and come for as long as it takes."""
        self.failed = False
        """A worker has reported a failure within its stream."""
        self._aborted = False
        """Its engine gave it up, and nobody can resume it."""
        self._whole = b""
        self._joiner: StreamJoiner | None = None

    @property
    def joiner(self) -> StreamJoiner | None:
        """Joins the workers' parts, made when it is first needed; None where nobody can resume."""
        if self._joiner is None and self._limits is not None:
            limits = self._limits
            self._joiner = StreamJoiner(Stopping(limits.stops, limits.stop_included))
        return self._joiner

    @property
    def resumable(self) -> bool:
        """Another worker can resume what one hands back."""
        return self._limits is not None

    @property
    def movable(self) -> bool:
        """Another worker can go on with a stream of it: its worker keeps no text back that may be a stop string's."""
        if self._replay is not None:
            return self._replay.movable
        limits = self._limits
        return limits is not None and (limits.stop_included or not limits.stops)

    @property
    def resumed(self) -> bool:
        """Another worker has produced some of the answer."""
        return bool(self._times)

    @property
    def path(self) -> str:
        """Path of the next attempt: that of completions once the answer is resumed from its tokens."""
        return Endpoint.COMPLETIONS if self._times and self._replay is None else self._first.info.endpoint

    @property
    def replay(self) -> StreamReplay | None:
        """What has another worker make the stream again; None where it can at most be resumed from its tokens."""
        return self._replay

    @property
    def kept(self) -> KeptBytes | None:
        """What counts the bytes that are kept of recorded streams; None where this is none."""
        return None if self._replay is None else self._replay.kept

    @property
    def diverged(self) -> bool:
        """What comes is no stream that the client has the beginning of."""
        return self._replay is not None and self._replay.lost

    @property
    def why(self) -> str:
        """Why nobody could go on with the stream now, as a code; "" where somebody could, or none has begun."""
        if self._replay is not None:
            return "" if self._replay.ended else self._replay.why
        if self._limits is None:
            return self._first.unresumed
        joiner = self._joiner
        if not self.movable:
            return Unresumed.STOPS
        return "" if joiner is None or joiner.can_resume else Unresumed.IDS

    def trail(self, trail: Trail) -> None:
        """Note what others have relayed of a recorded stream."""
        if self._replay is not None:
            self._replay.trail(trail)

    def close(self) -> None:
        """Keep nothing of the request any more."""
        if self._replay is not None:
            self._replay.close()

    @property
    def stopped(self) -> bool:
        """The answer is complete, whatever its worker still sends."""
        return self._joiner is not None and self._joiner.stopped

    def relayed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Return the events to relay for a worker's events."""
        if self._replay is not None:
            return [each for event in events for each in self._replay.feed(event)]
        joiner = self.joiner
        if joiner is None:
            return self._before_abort(events)
        return [each for event in events for each in joiner.feed(event)]

    def _before_abort(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """The events before the one by which an engine gives up an answer that nobody can resume."""
        if not self._aborted and not any(map(aborts, events)):
            return events
        kept = 0 if self._aborted else next(at for at, event in enumerate(events) if aborts(event))
        self._aborted = True
        return events[:kept]

    def passes(self, *, first: bool) -> Passes:
        """The events that may be relayed unread; ``begin`` and ``add`` note what was in ordinary ones.

        ``first``: the next events are the answer's first.
        """
        if self._replay is not None:
            return Passes.RECORDED if self._replay.steady else Passes.NOTHING
        joiner = self.joiner
        if joiner is None:
            return Passes.NOTHING if self._aborted else Passes.MOST
        return Passes.ORDINARY if (joiner.fresh if first else joiner.passes) else Passes.NOTHING

    def begin(self, name: Name, prompt: bytes) -> None:
        """Note the name, and the prompt's ids as JSON, that first events told which others relayed."""
        if self._joiner is not None:
            self._joiner.begin(name, prompt)

    def add(self, ids: list[int], text: str, finish: str) -> None:
        """Note ids and text in events that were relayed by others, and the finish reason; "" for none."""
        if self._joiner is not None:
            self._joiner.add(ids, text, finish)

    def breaks(self, events: Sequence[bytes]) -> bool:
        """Whether the worker reports a failure (5xx; ``failed`` keeps it), and another one can resume the answer."""
        if not any(error_code(event) >= 500 for event in events):
            return False
        self.failed = True
        return self.survives

    def outcome(self, of: Outcome) -> Outcome:
        """Return the outcome for the end of a worker's stream, which ended as ``of`` says."""
        if of is Outcome.FINISHED and self._replay is not None and self._replay.dropping:
            of = Outcome.LOST
        if of is Outcome.FINISHED and (self._aborted or (self._handed_back and not self._goes_on)):
            return Outcome.ABORTED
        if of is Outcome.FINISHED and self._handed_back:
            return Outcome.HANDED_BACK
        return Outcome.CUT_OFF if of is Outcome.LOST and self.survives else of

    def takes_back(self, answer: Answer | None) -> bool:
        """Note a whole answer; return whether its worker hands it back unfinished."""
        if answer is None or answer.status != 200 or (not self._times and not may_give_up(answer.body)):
            return False  # as nearly all: nothing is to be joined
        joiner = self.joiner
        if joiner is None:
            return False
        try:
            self._whole = joiner.whole(answer.body)
        except (msgspec.DecodeError, KeyError, ValueError):  # not vLLM's shape: it is not resumed
            return False
        return joiner.handed_back and not joiner.stopped and self._goes_on

    @property
    def _goes_on(self) -> bool:
        """Whether another worker may be asked to go on with what one gave up."""
        if self._replay is not None and not self._replay.survives:
            return False
        return self._given_up < max(MAX_ABORTS, self._allowed)

    @property
    def _given_up(self) -> int:
        return self._times - self._moves

    def joined(self, answer: Answer) -> Answer:
        """Return the last worker's whole answer, joined with what others produced before it."""
        return replace(answer, body=self._whole) if self._times and answer.status == 200 else answer

    @property
    def _handed_back(self) -> bool:
        if self._replay is not None:
            return self._replay.aborted
        return self._joiner is not None and self._joiner.handed_back

    @property
    def survives(self) -> bool:
        """Another worker can resume if the connection breaks now: all text of what was produced has come."""
        if self._replay is not None:
            return self._replay.survives
        joiner = self.joiner
        return self.movable and joiner is not None and joiner.can_resume and not joiner.ended

    def begun(self) -> None:
        """The answer has begun: forget of the request what only asking for its beginning needs."""
        first = self._first
        info = first.info.with_fields({})
        rendering = replace(first.rendering, held=None)
        if self._replay is not None:
            body = first.body if self._times else self._replay.keep(first.body)
        else:
            body = b"" if self._limits is None else carried(first.body)
        self._first = replace(first, info=info, body=body, rendering=rendering)
        self.request = replace(self.request, info=info, body=b"", rendering=rendering)

    async def go_on(self, text: Text, *, moved: bool = False) -> bool:
        """Set ``request`` to ask for the rest of the answer; False where that is not possible.

        ``moved``: its worker has not failed, but drains.
        """
        if self._replay is not None:
            return self._again(self._replay, moved=moved)
        joiner = self.joiner
        if joiner is None or not joiner.can_resume:
            return False
        kept = await kept_ids(joiner.produced, text)
        if kept is None:
            return False
        joiner.resume(kept)
        if not joiner.prompt_ids:  # they were sent, but not as ids
            return False
        self._times += 1
        self._moves += moved
        self.request = self._rest(joiner)
        return True

    def _again(self, replay: StreamReplay, *, moved: bool) -> bool:
        if not replay.survives:
            return False
        replay.again()
        self._times += 1
        self._moves += moved
        prompt = self._first.prompt
        self.request = replace(self._first, prompt=replace(prompt, tokens=prompt.tokens + replay.parts, continued=True))
        return True

    def _rest(self, joiner: StreamJoiner) -> Request:
        prompt_ids, produced = list(joiner.prompt_ids), joiner.ids
        longest = self._first.model.max_model_len
        bounds = [self._limits.tokens if self._limits else None, longest and longest - len(prompt_ids)]
        budget = min((bound for bound in bounds if bound is not None), default=len(produced) + 1) - len(produced)
        least = (self._limits.least if self._limits else 0) - len(produced)
        first, members = unmarked(self._first.body), self._first.members
        body = rest_body(first, prompt_ids=prompt_ids, produced=produced, budget=max(1, budget), least=least)
        if self._given_up < self._allowed:  # the last worker allowed cannot hand it back
            body, members = marked(body)
        prompt = self._prompt([*prompt_ids, *produced], budget)
        return replace(self._first, body=body, members=members, prompt=prompt)

    def _prompt(self, ids: list[int], budget: int) -> Prompt:
        """With keys of the produced tokens after the prompt's: the first worker may still hold these blocks."""
        first = self._first.prompt
        keyer = self._fleet.keyer(self._first.model.name, salt=self._first.salt)
        if keyer is None or not first.keys:
            return replace(first, tokens=len(ids), max_tokens=budget, continued=True)
        keys = keyer.packed_keys(ids)
        exact = Knowledge.EXACT
        return Prompt(len(ids), keys, keyer.block_size, budget, exact, adapter=first.adapter, continued=True)

    @property
    def _allowed(self) -> int:
        return self._limits.hand_backs if self._limits else 0
