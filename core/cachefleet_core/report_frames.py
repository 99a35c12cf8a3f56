"""The frames between an agent and a control plane: msgpack over a WebSocket, subprotocol ``cachefleet.reports.v1``.

A *stream* is (worker, rank, epoch). On each connection an agent sends, for each rank it serves, Hello, then a
Snapshot (in parts, applied as one when the last is in), then Deltas numbered +1 from the snapshot's sequence, and a
State each second and on change. A receiver that misses a number, or whose digest differs from a State's at the same
sequence, asks for a Resync. A new epoch starts with a new Hello.

Frames are maps, so fields can be added; a receiver ignores fields it does not know. Operations are arrays, for size.
All that is received is checked against the limits here: a valid frame is decoded, or FrameError raised.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from cachefleet_core.block_keys import BlockKey, Tier, unpack_keys
from cachefleet_core.hit_rule import PLAIN, HitRule
from cachefleet_core.index_contract import Difference, IndexContract, RenderProfile
from cachefleet_core.pool.adapter_reports import AdapterReport, WantedAdapters
from cachefleet_core.report_fields import (
    Count,
    FlightNumbers,
    Flights,
    HeldBySalt,
    IdleBySalt,
    Key,
    Name,
    Paid,
    Rank,
    Ratio,
    SaltShares,
    Seconds,
    Text,
    Url,
)
from cachefleet_core.warmth import Prefix, Warmth

SUBPROTOCOL: Final = "cachefleet.reports.v1"
PATH: Final = "/v1/reports"
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_KEYS_PER_FRAME: Final = 131_072
MAX_OPERATIONS: Final = 16_384
MAX_LOADS: Final = 1024
MAX_ENDPOINTS: Final = 128

PackedKeys = Annotated[bytes, Meta(min_length=8, max_length=8 * MAX_KEYS_PER_FRAME)]


class FrameError(ValueError):
    """Bytes that are no valid frame; the message says which field and why, never its value."""


class Phase(StrEnum):
    """Life-cycle phase of a worker, as its agent sees it."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


ENGINE_LOST: Final = "engine_lost"
"""Among the reasons of a State: the engine was there, and its process has ended."""


class Stored(Struct, tag=0, array_like=True, frozen=True):
    """A chain of keys now held, in order; ``parent`` is the key before the first, 0 where they begin a prompt."""

    parent: Key
    keys: PackedKeys
    tier: Tier = Tier.DEVICE

    def unpack(self) -> list[BlockKey]:
        """The keys in chain order. ValueError where the packed length is no multiple of 8."""
        return unpack_keys(self.keys)


class Removed(Struct, tag=1, array_like=True, frozen=True):
    """Keys no longer held in a tier, in any order."""

    keys: PackedKeys
    tier: Tier = Tier.DEVICE

    def unpack(self) -> list[BlockKey]:
        """The keys. ValueError where the packed length is no multiple of 8."""
        return unpack_keys(self.keys)


class Cleared(Struct, tag=2, array_like=True, frozen=True):
    """Nothing is held any more, in any tier."""


Operation = Stored | Removed | Cleared


class Capability(Struct, frozen=True, kw_only=True):
    """The mode of one feature of the worker plugin on this engine, and the reason where it is limited."""

    feature: Name
    mode: Name
    reason: Text = ""


class Hello(Struct, tag="hello", frozen=True, kw_only=True):
    """Begins a stream: worker, rank, epoch, addresses, contract and capabilities."""

    worker: Name
    pool: Name
    rank: Rank = 0
    epoch: Name
    endpoint: Url
    agent: Url = ""
    agent_version: Text = ""
    engine_version: Text = ""
    contract: IndexContract
    profile: RenderProfile = RenderProfile()
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=64)] = ()
    block_bytes: Count = 0
    """Bytes of one block on one device; 0 where the engine does not tell."""
    blocks_total: Count = 0
    max_model_len: Count = 0
    max_batched_tokens: Count = 0
    adapters: Annotated[tuple[Name, ...], Meta(max_length=64)] | None = None
    """Names of the adapters that the engine serves; None where that is not told."""
    configuration: Annotated[tuple[Difference, ...], Meta(max_length=32)] = ()
    """Fields in which the engine has something else than its pool asks for."""
    rule: HitRule = PLAIN
    """What a hit needs; keys of windows are among those reported (``hit_rule.window_key``)."""
    shares: bool = False
    """The agent passes Loads on between its control planes."""
    endpoints: Annotated[tuple[Name, ...], Meta(max_length=MAX_ENDPOINTS)] | None = None
    """Paths that the engine takes a POST at; None where that is not told."""
    not_indexed: Text = ""
    """Why hits on this engine cannot be told from its blocks, so that none are reported; "" where they can."""


class Snapshot(Struct, tag="snapshot", frozen=True, kw_only=True):
    """One part of all blocks held at ``sequence``: chains with parents first, across parts too."""

    rank: Rank = 0
    sequence: Count
    part: Count
    last: bool
    chains: Annotated[tuple[Stored, ...], Meta(max_length=MAX_OPERATIONS)] = ()


class Delta(Struct, tag="delta", frozen=True, kw_only=True):
    """Changes since ``sequence - 1``, in order."""

    rank: Rank = 0
    sequence: Count
    operations: Annotated[tuple[Operation, ...], Meta(max_length=MAX_OPERATIONS)]


class State(Struct, tag="state", frozen=True, kw_only=True):
    """A worker's load metrics, and the ``digest`` of all held (key, tier) at ``sequence`` to check its stream.

    Fields that this engine cannot tell are None.
    """

    rank: Rank = 0
    sequence: Count
    digest: Key
    held: Count
    """Distinct (key, tier) held."""
    unkeyed: bool | None = None
    """Whether the engine has stored blocks that have no key and are not among these."""
    phase: Phase
    reason: Text = ""
    """Why the worker takes no traffic, or took it before it was warm: words of a fixed set, comma separated."""
    drain_seconds: Seconds | None = None
    """For how long requests under way may go on yet, where it drains."""
    suspended: Text = ""
    """A Suspension, or a later agent's word for another one; "" where the engine serves."""
    running: Count
    waiting: Count
    waiting_tokens: Count | None = None
    blocks_total: Count = 0
    blocks_free: Count = 0
    """Blocks a new request may take, idle cached ones included."""
    blocks_idle: Count | None = None
    """Idle cached blocks: kept for reuse, used by no request."""
    idle_by_salt: IdleBySalt = msgspec.field(default_factory=dict)
    """Of these, the blocks of the tenants that have most; none where the engine does not tell."""
    held_by_salt: HeldBySalt = msgspec.field(default_factory=dict)
    """The blocks of tenants that have a contract in the policy in force."""
    preemptions: Count = 0
    prefill_tokens_per_second: Seconds | None = None
    loaded_tokens_per_second: Seconds | None = None
    """Prompt tokens loaded from the host's memory or a disk."""
    inter_token_seconds: Seconds | None = None
    prefix_queries: Count = 0
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_hits: Count = 0
    """Of these, tokens found."""
    generation: Count = 0
    """Generation of the policy in force on this worker."""
    warmth: Warmth = Warmth()
    sharing: Count = 0
    """Control planes that share their load through this agent."""
    adapters: AdapterReport | None = None
    """None where what its Hello said of them holds."""


class Policy(Struct, tag="policy", frozen=True, kw_only=True):
    """What a pool's workers are to enforce; one with an older generation of the same pool is ignored."""

    pool: Name
    uid: Text = ""
    generation: Count
    threshold: Ratio = 0.0
    preemption: Annotated[str, Meta(pattern="^(HandBack|Recompute)$")] = "HandBack"
    reject_below: Ratio = 0.0
    budget_mib: Count | None = None
    """Bound on idle cached blocks per device, in MiB; None removes the bound, 0 keeps no idle cache."""
    cache_share: Ratio = 1.0
    """Share of that bound that each tenant may keep where others need it as well."""
    tenant_shares: SaltShares | None = None
    """Tenants with a share of their own; None where the sender does not know salts: what was told before holds."""
    keep_share: Ratio = 0.0
    """Share of the bound that is evicted last because its requests ask for it."""
    max_entries: Count = 1024
    """Turns of conversations that a worker keeps by handle."""
    warm_prefixes: Count = 0
    """Prefixes that a standing Warm will name; 0 where there are none to wait for."""
    warm_timeout_seconds: Seconds = 600.0
    """How long a worker takes no traffic while it caches them."""
    adapters: WantedAdapters | None = None
    """What agents load while engines run; None where the sender does not know: what was told before holds."""


class Resync(Struct, tag="resync", frozen=True, kw_only=True):
    """Asks for a snapshot of this rank's stream."""

    rank: Rank = 0
    reason: Text = ""


class Warm(Struct, tag="warm", frozen=True, kw_only=True):
    """Cache these prompts; where ``standing``, again in each epoch and whenever the cache was cleared.

    A standing Warm names all of a pool's warm prefixes, and replaces an earlier one unless that has a later generation.
    """

    prefixes: Annotated[tuple[Prefix, ...], Meta(max_length=256)]
    standing: bool = False
    uid: Text = ""
    generation: Count = 0


class Drain(Struct, tag="drain", frozen=True, kw_only=True):
    """Take no new requests, and finish the running ones within ``seconds``."""

    seconds: Seconds


class Share(Struct, tag="share", frozen=True):
    """The control plane takes the Loads of others, and gives its own under this name."""

    origin: Name


class SharedLoad(Struct, tag="load", frozen=True, kw_only=True):
    """A replica's requests in flight to one rank that have changed, or all of them; agents pass it on as it is."""

    rank: Rank = 0
    origin: Name
    whole: bool = False
    """Requests that are not named are over: what was lost heals so."""
    flights: Flights = ()
    ended: FlightNumbers = ()
    failed: FlightNumbers = ()
    """Those that ended without a first token: their blocks will not come."""
    paid: Annotated[tuple[Paid, ...], Meta(max_length=256)] = ()


class LoadHead(Struct, tag="load", frozen=True):
    """What an agent reads of a Load."""

    origin: Name
    rank: Rank = 0


class Loads(Struct, tag="loads", frozen=True):
    """Loads of an agent's other control planes."""

    loads: Annotated[tuple[SharedLoad, ...], Meta(max_length=MAX_LOADS)]


class PassedLoads(Struct, tag="loads", frozen=True):
    """The same as an agent makes it, of the frames that came."""

    loads: tuple[Raw, ...]


F = TypeVar("F")

UpFrame = Hello | Snapshot | Delta | State | Loads
DownFrame = Policy | Resync | Warm | Drain | Share | SharedLoad
ReadFrame = Policy | Resync | Warm | Drain | Share | LoadHead
"""What an agent reads of a DownFrame."""

_QUOTED: Final = re.compile(r"value '.*'", re.DOTALL)
_encoder = msgspec.msgpack.Encoder()
_up: msgspec.msgpack.Decoder[UpFrame] = msgspec.msgpack.Decoder(UpFrame)
_down: msgspec.msgpack.Decoder[ReadFrame] = msgspec.msgpack.Decoder(ReadFrame)


def encode(frame: UpFrame | DownFrame | PassedLoads) -> bytes:
    """The bytes of a frame. FrameError where they would exceed MAX_FRAME_BYTES."""
    data = _encoder.encode(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(f"frame is {len(data)} bytes, the limit is {MAX_FRAME_BYTES}")
    return data


def decode_up(data: bytes) -> UpFrame:
    """Decode an agent's frame. FrameError where it is invalid."""
    frame = _decode(_up, data)
    if isinstance(frame, Delta | Snapshot):
        _check_operations(frame.operations if isinstance(frame, Delta) else frame.chains)
    return frame


def decode_down(data: bytes) -> ReadFrame:
    """Decode a control plane's frame, of a SharedLoad its head. FrameError where it is invalid."""
    return _decode(_down, data)


def _decode(decoder: msgspec.msgpack.Decoder[F], data: bytes) -> F:
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(f"frame is {len(data)} bytes, the limit is {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise FrameError(f"not a frame of {SUBPROTOCOL}: {_without_value(error)}") from None


def _without_value(error: Exception) -> str:
    """A decoder's message without the value that it quotes, which is the sender's."""
    return "text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else _QUOTED.sub("value", str(error))


def _check_operations(operations: tuple[Operation, ...]) -> None:
    total = 0
    for operation in operations:
        if not isinstance(operation, Cleared):
            total += _check_keys(operation)
    if total > MAX_KEYS_PER_FRAME:
        raise FrameError(f"keys: {total} in one frame, the limit is {MAX_KEYS_PER_FRAME}")


def _check_keys(operation: Stored | Removed) -> int:
    """The number of keys of an operation. FrameError where they are invalid."""
    try:
        keys = operation.unpack()
    except ValueError as error:
        raise FrameError(f"keys: {error}") from error
    if 0 in keys:
        raise FrameError("keys: 0 is not a block key")
    if isinstance(operation, Stored) and (len(set(keys)) != len(keys) or operation.parent in keys):
        raise FrameError("keys: a key occurs twice in one chain")
    return len(keys)
