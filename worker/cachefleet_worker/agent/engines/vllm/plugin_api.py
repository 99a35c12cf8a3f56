"""Answers of the worker plugin's routes under ``/v1/fleet``, as values: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from cachefleet_core.hit_rule import CacheGroup
from cachefleet_core.index_contract import Lookahead
from cachefleet_core.report_fields import Rank
from cachefleet_core.report_frames import Capability
from cachefleet_worker.agent.engines.engine_facts import OFF
from cachefleet_worker.agent.engines.engine_poll import BootId, Count, RankStats

CAPABILITIES_PATH: Final = "/v1/fleet/capabilities"
STATS_PATH: Final = "/v1/fleet/stats"
POLICY_PATH: Final = "/v1/fleet/policy"
CONVERSATIONS_PATH: Final = "/v1/fleet/conversations"
HAND_BACK_PATH: Final = "/v1/fleet/hand_back"

Answer = TypeVar("Answer")


class PluginRank(Struct, frozen=True):
    """One data-parallel rank's block pool; constant while its engine process, named by ``boot``, lives."""

    boot: BootId
    block_bytes: Count = 0
    blocks_total: Count = 0
    block_size: Count = 0
    groups: Annotated[tuple[CacheGroup, ...], Meta(max_length=256)] = ()
    """The KV cache groups that take part in prefix caching; empty from an older plugin."""
    lookahead: Lookahead = 0
    """Tokens after a block that its hash covers."""


class ServerFacts(Struct, frozen=True):
    """vLLM's configuration as the plugin reports it; None for fields it does not report."""

    prefix_caching: bool | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    kv_events: bool | None = None
    events_endpoint: Annotated[str, Meta(max_length=1024)] | None = None


NOT_TOLD: Final = ServerFacts()


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The plugin's capability document."""

    ranks: Mapping[int, PluginRank]
    features: tuple[Capability, ...] = ()
    plugin: str = ""
    server: ServerFacts = NOT_TOLD
    modes: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "modes", {feature.feature: feature.mode for feature in self.features})

    def mode(self, feature: str) -> str:
        """Mode of a feature; "off" where the document does not name it."""
        return self.modes.get(feature, OFF)


class _Document(ServerFacts, frozen=True, kw_only=True):
    ranks: dict[Rank, PluginRank]
    features: tuple[Capability, ...] = ()
    plugin: str = ""


class _Stats(Struct):
    ranks: dict[Rank, RankStats]


class _InForce(Struct):
    generation: int = -1


class _PolicyAnswer(Struct):
    ranks: dict[Rank, _InForce]


class _HandedBack(Struct):
    handed_back: Count


class _HandBackAnswer(Struct):
    ranks: dict[Rank, _HandedBack]


class _Ended(Struct):
    turns: Count


_document = msgspec.json.Decoder(_Document, strict=False)  # JSON object keys are strings, ranks are integers
_stats = msgspec.json.Decoder(_Stats, strict=False)
_handed_back = msgspec.json.Decoder(_HandBackAnswer, strict=False)
_policy = msgspec.json.Decoder(_PolicyAnswer, strict=False)
_ended = msgspec.json.Decoder(_Ended)


def read_capabilities(content: bytes) -> FleetFacts:
    """The capability document. ValueError where ``content`` is none."""
    document = _read(_document, content)
    told = ServerFacts(*(getattr(document, name) for name in ServerFacts.__struct_fields__))
    return FleetFacts(document.ranks, document.features, document.plugin, told)


def read_stats(content: bytes) -> Mapping[int, RankStats]:
    """Each rank's statistics. ValueError where ``content`` holds none."""
    return _read(_stats, content).ranks


def read_generations(content: bytes) -> Mapping[int, int]:
    """The generation in force at each rank, from the answer to a policy. ValueError where it is none."""
    return {rank: answer.generation for rank, answer in _read(_policy, content).ranks.items()}


def read_handed_back(content: bytes) -> int:
    """How many answers were given back, over all ranks. ValueError where the answer tells none."""
    return sum(rank.handed_back for rank in _read(_handed_back, content).ranks.values())


def read_ended(content: bytes) -> int:
    """How many turns were kept, from the answer to their ending. ValueError where it is none."""
    return _read(_ended, content).turns


def _read(decoder: msgspec.json.Decoder[Answer], content: bytes) -> Answer:
    try:
        return decoder.decode(content)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
