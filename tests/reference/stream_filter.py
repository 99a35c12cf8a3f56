"""What a client gets of a chat's or completion's stream: ``cachefleet_native.StreamFilter`` by decoded JSON.

Events are compact JSON, as ``json.dumps`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cachefleet_runtime.sse import DONE, event_data

_IDS = ("token_ids", "prompt_token_ids")
_TEXTS = ("content", "text", "reasoning", "arguments")


def encoded(members: Any) -> bytes:
    """Return an event with this JSON."""
    return b"data: " + json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@dataclass
class ReferenceFilter:
    """The filter of one stream; its settings as those of the native one."""

    strip_usage: bool
    strip_ids: bool
    single: bool
    fingerprint: str | None = None
    """None where it is not known; "" for a worker without one."""
    echoes: int = 0
    omit_zeros: bool = False
    usage: Any = None
    produced: int = 0
    prompts: int = 0
    longest: int = 0
    _begun: bool = False
    _echoed: int = 0
    _held: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waits = self.single or self.fingerprint is None

    def feed(self, event: bytes) -> bytes:
        """Return what the client is sent for an event."""
        data = event_data(event)
        if data == DONE:
            return self.end() + event
        told = _decoded(data)
        first, self._begun = not self._begun, self._begun or bool(data)
        if not isinstance(told, dict) or "error" in told:
            return self._pass(event)
        choices = told.get("choices")
        if first and told.get("usage") and choices:  # its worker sends running usage to everybody
            self.strip_usage = False
        if choices == [] and told.get("usage") is not None:
            return self._end_with_usage(told)
        return self._delta(told)

    def end(self) -> bytes:
        """Return what is still held back."""
        return self._release("")

    def _end_with_usage(self, told: dict[str, Any]) -> bytes:
        self.usage = told["usage"]
        if self.strip_usage:
            self.fingerprint = told.get("system_fingerprint") or ""
            return self._release(self.fingerprint)
        details = self.usage.get("prompt_tokens_details")
        if self.omit_zeros and details and details.get("cached_tokens") == 0:
            told = told | {"usage": {k: v for k, v in self.usage.items() if k != "prompt_tokens_details"}}
        return self._pass(encoded(told))

    def _delta(self, told: dict[str, Any]) -> bytes:
        self._count(told)
        finishes = any(choice.get("finish_reason") for choice in told["choices"])
        if self.strip_ids:
            if _is_hollow(told):
                return b""
            told = _without_ids(told) | {"choices": [_without_ids(choice) for choice in told["choices"]]}
        if not (self.strip_usage and finishes):
            return self._pass(encoded(told))
        if self._waits:
            self._held.append(encoded(told))
            return b""
        return _signed(encoded(told), self.fingerprint or "")

    def _pass(self, event: bytes) -> bytes:
        if not self._held:
            return event
        self._held.append(event)
        return b""

    def _release(self, fingerprint: str) -> bytes:
        held, self._held = self._held, []
        return b"".join(_signed(event, fingerprint) for event in held)

    def _count(self, told: dict[str, Any]) -> None:
        parts = [told, *told["choices"]]
        lists = [part[name] for part in parts for name in _IDS if isinstance(part.get(name), list)]
        if self.echoes > 0:
            self._count_after_echo(told)
        elif not lists and not told.get("kv_transfer_params"):
            self.produced += _says_something(told)
        elif not told.get("kv_transfer_params"):
            longest = max(len(part.get("prompt_token_ids") or ()) for part in parts)
            self.produced += sum(len(choice.get("token_ids") or ()) for choice in told["choices"])
            self.prompts += longest
            self.longest = max(self.longest, longest)

    def _count_after_echo(self, told: dict[str, Any]) -> None:
        """The first text of each choice is its prompt."""
        if _says_something(told):
            self._echoed += 1
            self.produced += self._echoed > self.echoes


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _without_ids(part: dict[str, Any]) -> dict[str, Any]:
    return part | {name: None for name in _IDS if isinstance(part.get(name), list)}


def _is_hollow(told: dict[str, Any]) -> bool:
    """Whether an event exists for its ids alone."""
    choice, *others = told["choices"]
    if others or not any(name in _IDS and isinstance(value, list) for name, value in _members(told)):
        return False
    return choice.get("delta") == {} and choice.get("finish_reason") is None and choice.get("logprobs") is None


def _signed(event: bytes, fingerprint: str) -> bytes:
    told = _decoded(event_data(event))
    if not fingerprint or not isinstance(told, dict) or not any(_finishes(told)):
        return event
    return encoded(told | {"system_fingerprint": fingerprint})


def _finishes(told: dict[str, Any]) -> Iterator[bool]:
    return (bool(choice.get("finish_reason")) for choice in told.get("choices", ()))


def _says_something(told: Any) -> bool:
    """Whether the first member of any of these names is a text."""
    first: dict[str, Any] = {}
    for name, value in _members(told):
        if isinstance(value, str):
            first.setdefault(name, value)
    return any(first.get(name) for name in _TEXTS)


def _members(told: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(told, dict):
        for name, value in told.items():
            yield name, value
            yield from _members(value)
    elif isinstance(told, list):
        for value in told:
            yield from _members(value)
