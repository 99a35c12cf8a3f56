"""Joins what several workers produced, one after the other, into one answer in the first one's form.

The first worker's events pass unchanged. After a seam follows a plain completion of prompt and produced ids: it gets
the first one's id and model and, for a chat, a chat's form. Usage counts the prompt once, and all produced tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import TRANSFER_FIELD
from cachefleet_controlplane.gateway.retry.stop_strings import StopGuard
from cachefleet_controlplane.gateway.send.answers.answer import error_code
from cachefleet_controlplane.gateway.send.answers.produced_tokens import (
    ABORTED,
    HANDED_BACK,
    Name,
    Produced,
    may_give_up,
)
from cachefleet_controlplane.gateway.send.answers.usage import count
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_runtime.sse import DONE, event_data

Json = dict[str, Any]

_decode = msgspec.json.Decoder(Json).decode
_encode = msgspec.json.Encoder().encode
_LAST: Final = b"data: " + DONE + b"\n\n"


class Stopping(Struct, frozen=True):
    """A request's stop strings; ``included``: they are part of the answer."""

    stops: Sequence[str] = ()
    included: bool = False

    def guard(self, said: str) -> StopGuard:
        """Return a guard for the seam after the text ``said``."""
        return StopGuard(self.stops, said, included=self.included)


class StreamJoiner:
    """Joins the answers of workers; fed one worker's events after the other's, with ``resume`` between them."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._name: Name | None = None
        self._attempt = Produced()
        self._guard: StopGuard | None = None
        self._sent = 0
        """Characters of all text that were returned for the client."""
        self._details: Any = None
        """The first worker's ``prompt_tokens_details``; None where it did not send them: then the last one's stand."""
        self._text = ""
        """Text of the workers before the present one."""
        self._begun: Json = {}
        """The first worker's answer, where it is a whole one."""
        self.ids: list[int] = []
        """Ids produced by the workers before the present one, and kept."""
        self.prompt_ids: Sequence[int] = ()

    @property
    def handed_back(self) -> bool:
        """The present worker hands the answer back, or its engine gave it up."""
        return self._attempt.finish in {HANDED_BACK, ABORTED}

    @property
    def can_resume(self) -> bool:
        """The prompt's ids have come, which another worker needs to resume."""
        return bool(self.prompt_ids) or self._attempt.tells_prompt

    @property
    def ended(self) -> bool:
        """The present worker has sent a finish reason, other than to hand back."""
        return self._attempt.finish is not None and not self.handed_back

    @property
    def stopped(self) -> bool:
        """A stop string across a seam has ended the answer; what the present worker still sends is ignored."""
        return self._guard is not None and self._guard.stopped is not None

    @property
    def produced(self) -> list[int]:
        """Ids produced by all workers so far."""
        return [*self.ids, *self._attempt.ids]

    def resume(self, kept: int) -> None:
        """Begin another worker's part after the first ``kept`` ids of ``produced``, which make all text so far."""
        self._name = self._name or self._attempt.name
        self.prompt_ids = self.prompt_ids or self._attempt.prompt_ids
        self.ids = self.produced[:kept]
        self._text += self._attempt.text
        self._guard = self._stopping.guard(self._text)
        self._attempt = Produced()

    @property
    def fresh(self) -> bool:
        """Nothing has come of any worker."""
        return self._guard is None and self._attempt.name is None

    def begin(self, name: Name, prompt: bytes) -> None:
        """Note what the first events told that others have passed on: see ``Produced.begin``."""
        self._attempt.begin(name, prompt)

    @property
    def passes(self) -> bool:
        """It passes on events unchanged that end no choice, and notes nothing of them but ids and text."""
        return self._guard is None and self._attempt.name is not None and self._attempt.finish is None

    def add(self, ids: list[int], text: str, finish: str) -> None:
        """Note what was in such events, which others have passed on, and the last one's finish reason."""
        self._attempt.add(ids, text, finish)
        self._sent += len(text)

    def feed(self, event: bytes) -> list[bytes]:
        """Return the events to relay for one event of the present worker."""
        data = event_data(event)
        if self.stopped or (data == DONE and self.handed_back):
            return []
        if not data or data == DONE or (self._guard is not None and error_code(event)):
            return [event]
        over = self.handed_back
        text = self._attempt.note(data)
        if over:
            self._learn(data)
            return []
        if self._guard is None and not self.handed_back:
            self._sent += len(text)
            return [event]
        chunk = _read(data)
        return [event] if chunk is None else self._relayed(chunk, text)

    def whole(self, body: bytes) -> bytes:
        """Return what to deliver for a whole answer of the present worker, unless it is handed back."""
        if self._guard is None and not may_give_up(body):
            return body  # the only worker's whole answer: no need to parse it
        answer = _decode(body)
        text = self._attempt.note(body)
        if self._guard is None:
            self._begun = answer
            self._details = _details(answer)
            return body
        (choice,) = answer["choices"]
        said = self._text[: len(self._text) - self._guard.kept_back]
        said += _checked(self._guard, choice, text, over=not self.handed_back)
        ends = {"finish_reason": choice.get("finish_reason"), "stop_reason": choice.get("stop_reason")}
        if self._guard.stopped is not None:
            ends = {"finish_reason": "stop", "stop_reason": self._guard.stopped}
        # The first worker's reason to hand back is there, and not for the client.
        told = {name: answer.get(name) for name in (TRANSFER_FIELD,) if name in self._begun}
        return _encode(self._joined(said, ends) | {"usage": self._usage(answer.get("usage"))} | told)

    def _joined(self, text: str, ends: Json) -> Json:
        """The first worker's answer, with all text and ids that followed."""
        (choice,) = self._begun["choices"]
        spoken = {"text": text}
        if "message" in choice:
            spoken = {"message": choice["message"] | {"content": text}}
        return self._begun | {"choices": [choice | spoken | ends | {"token_ids": self.produced}]}

    def _learn(self, data: bytes) -> None:
        """Note the usage that a worker sends after it handed back."""
        if self._guard is None and (chunk := _read(data)) is not None:
            self._details = _details(chunk)

    def _relayed(self, chunk: Json, text: str) -> list[bytes]:
        if not chunk.get("choices"):
            return [self._event(chunk, [], self._usage(chunk.get("usage")))]
        (choice,) = chunk["choices"]
        behind = "" if self._guard is None else _checked(self._guard, choice, text, over=not self.handed_back)
        if self._guard is not None and self._guard.stopped is not None:
            ends = choice | {"text": behind, "finish_reason": "stop", "stop_reason": self._guard.stopped}
            return [self._event(chunk, [ends]), self._event(chunk, [], self._usage({})), _LAST]
        if self.handed_back:
            said = choice | {"text": self._before_seam(), "finish_reason": None, "stop_reason": None}
            return [self._event({}, [said])] if said["text"] or choice.get("token_ids") else []
        self._sent += len(behind)
        return [self._event(chunk, [choice | {"text": behind}])]

    def _before_seam(self) -> str:
        """The text not sent yet that no stop string across the coming seam can remove."""
        whole = self._text + self._attempt.text
        end = max(self._sent, len(whole) - self._stopping.guard(whole).kept_back)
        start, self._sent = self._sent, end
        return whole[start:end]

    def _usage(self, told: object) -> Json:
        usage = told if isinstance(told, dict) else {}
        prompt = len(self.prompt_ids)
        completion = len(self.ids) + (count(usage.get("completion_tokens")) or len(self._attempt.ids))
        counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        details = self._details or _within(usage.get("prompt_tokens_details"), prompt)
        return usage | counted | {"prompt_tokens_details": details}

    def _event(self, chunk: Json, choices: list[Json], usage: Json | None = None) -> bytes:
        name = self._name or self._attempt.name
        if name is None:
            raise RuntimeError("an answer without a name")
        head = {"id": name.id, "object": name.object, "created": name.created, "model": name.model}
        shaped = [_chat_choice(choice) if name.is_chat else _choice(choice) for choice in choices]
        rest = {key: chunk[key] for key in ("system_fingerprint",) if chunk.get(key) is not None}
        body = head | {"choices": shaped} | ({} if usage is None else {"usage": usage}) | rest
        return b"data: " + _encode(body) + b"\n\n"


def _read(data: bytes) -> Json | None:
    """An event's JSON; None where it is none."""
    try:
        return _decode(data)
    except READ_ERRORS:
        return None


def _details(answer: Json) -> Any:
    """What a worker tells of its prompt's tokens."""
    usage = answer.get("usage")
    return usage.get("prompt_tokens_details") if isinstance(usage, dict) else None


def _within(details: Any, prompt: int) -> Any:
    """Details by a later worker, for which the prompt had the produced tokens behind it: those are no prompt's.

    They stand for those of a first worker that broke off before it told any.
    """
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return details if cached is None else details | {"cached_tokens": min(cached, prompt)}


def _checked(guard: StopGuard, choice: Json, text: str, *, over: bool) -> str:
    """The text of a choice that a seam's guard lets pass; ``over``: with a finish reason it is the last."""
    stop = choice.get("stop_reason") if over else None
    ended = over and choice.get("finish_reason") is not None
    return guard.feed(text, last=ended, stop=stop if isinstance(stop, str) else "")


def _chat_choice(choice: Json) -> Json:
    finish = choice.get("finish_reason")
    said = {"index": 0, "delta": {"content": choice["text"]}, "logprobs": None, "finish_reason": finish}
    return said | ({} if finish is None else {"stop_reason": choice.get("stop_reason")}) | _ids(choice)


def _choice(choice: Json) -> Json:
    ends = {name: choice.get(name) for name in ("finish_reason", "stop_reason")}
    return {"index": 0, "text": choice["text"], "logprobs": None} | ends | {"prompt_token_ids": None} | _ids(choice)


def _ids(choice: Json) -> Json:
    return {"token_ids": choice.get("token_ids")}
