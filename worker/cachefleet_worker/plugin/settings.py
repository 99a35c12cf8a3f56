"""The plugin's settings, from environment variables; every bound has its name here."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, get_args

from cachefleet_core.native import Choice
from cachefleet_core.tenancy import parse_index_key

log = logging.getLogger("vllm.cachefleet")

PREFIX: Final = "CACHEFLEET_"
FEATURES: Final = frozenset(
    {"gate", "finish_reason", "streaming", "preemption", "budget", "snapshot", "heartbeat", "tokens", "keys", "routes"}
    | {"guard", "prompts", "conversations", "held", "detokenizer", "adapters", "flush"}
    | {"message_start", "left_answers"}
)


class SettingsError(ValueError):
    """An invalid environment variable; the message names it and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Each field is read from the variable ``CACHEFLEET_`` and its name in capitals."""

    worker_key_file: Path | None = None
    """Holds the worker key; without it the routes refuse every request, and the guard is off."""
    index_key_file: Path | None = None
    """Holds the key that block keys are seeded with; without it the feature is off."""
    policy_file: Path | None = None
    """JSON of the policy in force from the start."""
    plugin_off: frozenset[str] = frozenset()
    """Features that are off."""
    backend: Choice = "auto"
    """Which code computes block keys; "native" insists on ``cachefleet_native``."""

    heartbeat_seconds: float = 2.0
    call_timeout_seconds: float = 10.0
    snapshot_timeout_seconds: float = 30.0
    max_body_bytes: int = 16 * 1024 * 1024
    body_timeout_seconds: float = 10.0
    """Longest time for a whole request body."""
    keys_at_once: int = 32
    """Requests for block keys in flight in one API server; more get 429."""
    keys_cache_bytes: int = 64 * 1024 * 1024
    keys_offloop_tokens: int = 16_384
    """Prompts of at least so many tokens are hashed off the event loop."""
    tokens_cache_bytes: int = 256 * 1024 * 1024
    tokens_sample_ratio: float = 0.002
    """Share of memoised encodings that are checked against the plain encoder."""

    prompts_bytes: int = 256 * 1024 * 1024
    """Rendered prompts that wait for the request that follows its keys, in one API server."""
    conversations_bytes: int = 128 * 1024 * 1024
    """Turns of conversations that requests continue, in one API server."""
    conversations_seconds: float = 3600.0
    """How long a turn is kept after its last use."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PluginSettings:
        """The settings; an invalid variable is logged and switches every feature off but the guard, and vLLM serves as
        stock to those who have the worker key.
        """
        try:
            return cls.read(environment)
        except SettingsError as error:
            log.error("cachefleet: %s; every feature is off but the guard", error)  # noqa: TRY400 - no trace needed
            key = environment.get(f"{PREFIX}WORKER_KEY_FILE", "")
            return cls(plugin_off=FEATURES - {"guard"}, worker_key_file=Path(key) if key else None)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> PluginSettings:
        """The settings. SettingsError where a variable is invalid."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(PREFIX + field.name.upper(), "")
            if text:
                given[field.name] = _READERS[field.name](PREFIX + field.name.upper(), text)
        return cls(**given)

    def worker_key(self) -> bytes:
        """The worker key that authorises the routes, b"" for none. OSError where its file cannot be read."""
        return self.worker_key_file.read_bytes().strip() if self.worker_key_file else b""

    def index_key(self) -> bytes:
        """The key that block keys are seeded with, b"" for none. OSError or ValueError where its file holds none."""
        if self.index_key_file is None:
            return b""
        try:
            return parse_index_key(self.index_key_file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{self.index_key_file}: {error}") from error


def _path(_name: str, text: str) -> Path:
    return Path(text)


def _features(name: str, text: str) -> frozenset[str]:
    named = frozenset(part.strip() for part in text.split(",") if part.strip())
    if unknown := named - FEATURES:
        raise SettingsError(f"{name}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(FEATURES))}")
    return named


def _choice(name: str, text: str) -> str:
    if text not in get_args(Choice):
        raise SettingsError(f"{name}: must be one of {', '.join(get_args(Choice))}, got {text!r}")
    return text


def _positive(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e12:
        raise SettingsError(f"{name}: must be a number above 0, got {text!r}")
    return value


def _positive_int(name: str, text: str) -> int:
    return max(1, int(_positive(name, text)))


def _ratio(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise SettingsError(f"{name}: must be a number from 0 to 1, got {text!r}")
    return value


_READERS: Final = {
    "worker_key_file": _path,
    "index_key_file": _path,
    "policy_file": _path,
    "plugin_off": _features,
    "backend": _choice,
    "heartbeat_seconds": _positive,
    "call_timeout_seconds": _positive,
    "snapshot_timeout_seconds": _positive,
    "max_body_bytes": _positive_int,
    "body_timeout_seconds": _positive,
    "keys_at_once": _positive_int,
    "keys_cache_bytes": _positive_int,
    "keys_offloop_tokens": _positive_int,
    "tokens_cache_bytes": _positive_int,
    "tokens_sample_ratio": _ratio,
    "prompts_bytes": _positive_int,
    "conversations_bytes": _positive_int,
    "conversations_seconds": _positive,
}
