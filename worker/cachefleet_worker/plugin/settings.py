"""The plugin's settings, from environment variables; and its bounds."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cachefleet_core.environment.removed_variables import removed_lines
from cachefleet_core.tenancy import parse_index_key

log = logging.getLogger("vllm.cachefleet")

PREFIX: Final = "CACHEFLEET_"
FEATURES: Final = frozenset(
    {"gate", "finish_reason", "streaming", "preemption", "budget", "snapshot", "heartbeat", "tokens", "keys", "routes"}
    | {"guard", "prompts", "conversations", "held", "detokenizer", "adapters", "flush"}
    | {"message_start", "left_answers", "answer_replay", "restored_outputs"}
)


class SettingsError(ValueError):
    """An invalid environment variable; the message names it and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Fields of ``READERS`` are read from the variable ``CACHEFLEET_`` and their name in capitals.

    The others are the same in every installation; whoever builds the plugin's parts may choose others.

    Each docstring of the former ends with when to change the setting: docs/settings.md is made from it.
    """

    worker_key_file: Path | None = None
    """Holds the worker key; without it the routes refuse every request, and the guard is off. Set by the operator."""
    index_key_file: Path | None = None
    """Holds the key that block keys are seeded with; without it the feature is off. Set by the operator."""
    policy_file: Path | None = None
    """JSON of the policy in force from the start. Set by the operator."""
    plugin_off: frozenset[str] = frozenset()
    """Features that are off, comma separated. Set it to rule one out as the cause of a problem."""
    max_body_bytes: int = 16 * 1024 * 1024
    """The longest body of the plugin's routes. Raise it with the gateway's `REQUEST_MAX_BYTES`."""
    tokens_cache_bytes: int = 256 * 1024 * 1024
    """Memory of encodings that are remembered, in one API server. Lower it where the pod has little memory."""
    conversations_bytes: int = 128 * 1024 * 1024
    """Turns of conversations that requests continue, in one API server. Raise it for more or longer conversations."""
    conversations_seconds: float = 3600.0
    """How long a turn is kept after its last use. Raise it where people come back later."""

    heartbeat_seconds: float = 2.0
    call_timeout_seconds: float = 10.0
    snapshot_timeout_seconds: float = 30.0
    body_timeout_seconds: float = 10.0
    """Longest time for a whole request body."""
    keys_at_once: int = 32
    """Requests for block keys in flight in one API server; more get 429."""
    keys_cache_bytes: int = 64 * 1024 * 1024
    keys_offloop_tokens: int = 16_384
    """Prompts of at least so many tokens are hashed off the event loop."""
    tokens_sample_ratio: float = 0.002
    """Share of memoised encodings that are checked against the plain encoder."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PluginSettings:
        """The settings; an invalid variable is logged and switches every feature off but the guard, and vLLM serves as
        stock to those who have the worker key.
        """
        for line in removed_lines("plugin", environment):
            log.warning("cachefleet: %s", line)
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
        for name, reader in READERS.items():
            variable = PREFIX + name.upper()
            if text := environment.get(variable, ""):
                given[name] = reader(variable, text)
        return cls(**given)

    def switched_off(self, feature: str) -> str:
        """Why a feature is not to be installed; "" where no setting rules it out."""
        return f"switched off by {PREFIX}PLUGIN_OFF" if feature in self.plugin_off else ""

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


READERS: Final = {
    "worker_key_file": _path,
    "index_key_file": _path,
    "policy_file": _path,
    "plugin_off": _features,
    "max_body_bytes": _positive_int,
    "tokens_cache_bytes": _positive_int,
    "conversations_bytes": _positive_int,
    "conversations_seconds": _positive,
}
"""How each variable is read, by the name of its field."""
