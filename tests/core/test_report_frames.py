from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cachefleet_core.block_keys import NO_PARENT, Tier, pack_keys
from cachefleet_core.index_contract import IndexContract, RenderProfile
from cachefleet_core.report_fields import Flight, Paid
from cachefleet_core.report_frames import (
    MAX_FRAME_BYTES,
    MAX_KEYS_PER_FRAME,
    MAX_OPERATIONS,
    Capability,
    Cleared,
    Delta,
    DownFrame,
    Drain,
    FrameError,
    Hello,
    LoadHead,
    Loads,
    PassedLoads,
    Phase,
    Policy,
    ReadFrame,
    Removed,
    Resync,
    Share,
    SharedLoad,
    Snapshot,
    State,
    Stored,
    UpFrame,
    Warm,
    decode_down,
    decode_up,
    encode,
)
from cachefleet_core.warmth import Prefix, Warmth

CONTRACT = IndexContract(weights="w", tokenizer="sha256:t", block_size=16)
HELLO = Hello(worker="a/b/c", pool="a/b", epoch="e", endpoint="http://x:8000", contract=CONTRACT)
STATE = State(sequence=1, digest=2, held=3, phase=Phase.READY, running=0, waiting=0)

NAMES = st.text(min_size=1, max_size=40)
COUNTS = st.integers(0, 2**63)
RATIOS = st.floats(0, 1)
SECONDS = st.floats(0, 1e9)
KEYS = st.integers(1, 2**64 - 1)
CHAINS = st.lists(KEYS, min_size=1, max_size=20, unique=True)
STORED = st.builds(
    lambda chain, tier: Stored(chain[0], pack_keys(chain[1:] or [chain[0] ^ 1 or 2]), tier),
    CHAINS,
    st.sampled_from(Tier),
)
ROOTS = st.builds(lambda chain, tier: Stored(NO_PARENT, pack_keys(chain), tier), CHAINS, st.sampled_from(Tier))
FLIGHTS = st.builds(
    Flight,
    number=COUNTS,
    age=SECONDS,
    computing=st.booleans(),
    **dict.fromkeys(("tokens", "sequences", "blocks", "taken", "skip", "common"), COUNTS),
    keys=CHAINS.map(pack_keys),
)
LOADS = st.builds(
    SharedLoad,
    rank=st.integers(0, 4095),
    origin=NAMES,
    whole=st.booleans(),
    flights=st.lists(FLIGHTS, max_size=3).map(tuple),
    ended=st.lists(COUNTS, max_size=3).map(tuple),
    failed=st.lists(COUNTS, max_size=3).map(tuple),
    paid=st.lists(st.builds(Paid, prefix=st.binary(min_size=8, max_size=8), seconds=SECONDS), max_size=2).map(tuple),
)
REMOVED = st.builds(lambda keys, tier: Removed(pack_keys(keys), tier), CHAINS, st.sampled_from(Tier))
UP = st.one_of(
    st.builds(
        Hello,
        worker=NAMES,
        pool=NAMES,
        epoch=NAMES,
        rank=st.integers(0, 4095),
        endpoint=st.text(max_size=40),
        contract=st.builds(IndexContract, weights=NAMES, tokenizer=NAMES, block_size=st.integers(1, 65536)),
        profile=st.builds(RenderProfile, renderer=NAMES, template=NAMES),
        capabilities=st.lists(st.builds(Capability, feature=NAMES, mode=NAMES), max_size=3).map(tuple),
        block_bytes=COUNTS,
    ),
    st.builds(
        Snapshot,
        sequence=COUNTS,
        part=COUNTS,
        last=st.booleans(),
        chains=st.lists(STORED | ROOTS, max_size=5).map(tuple),
    ),
    st.builds(
        Delta,
        rank=st.integers(0, 4095),
        sequence=COUNTS,
        operations=st.lists(STORED | ROOTS | REMOVED | st.just(Cleared()), max_size=5).map(tuple),
    ),
    st.builds(
        State,
        sequence=COUNTS,
        digest=st.integers(0, 2**64 - 1),
        held=COUNTS,
        phase=st.sampled_from(Phase),
        running=COUNTS,
        waiting=COUNTS,
        waiting_tokens=st.none() | COUNTS,
        prefill_tokens_per_second=st.none() | SECONDS,
        loaded_tokens_per_second=st.none() | SECONDS,
        warmth=st.builds(Warmth, done=COUNTS, total=COUNTS, failed=st.lists(NAMES, max_size=3).map(tuple)),
        sharing=COUNTS,
    ),
    st.builds(Loads, st.lists(LOADS, max_size=3).map(tuple)),
)
DOWN = st.one_of(
    st.builds(
        Policy,
        pool=NAMES,
        generation=COUNTS,
        threshold=RATIOS,
        preemption=st.sampled_from(["HandBack", "Recompute"]),
        reject_below=RATIOS,
        budget_mib=st.none() | COUNTS,
    ),
    st.builds(Resync, rank=st.integers(0, 4095), reason=st.text(max_size=40)),
    st.builds(
        Warm,
        prefixes=st.lists(
            st.builds(Prefix, name=NAMES, messages=st.binary(max_size=40), ids=st.binary(max_size=40)), max_size=3
        ).map(tuple),
    ),
    st.builds(Drain, seconds=SECONDS),
    st.builds(Share, origin=NAMES),
    LOADS,
)


def as_read(frame: DownFrame) -> ReadFrame:
    """What an agent reads of it."""
    return LoadHead(frame.origin, frame.rank) if isinstance(frame, SharedLoad) else frame


@given(UP)
def test_frames_up_survive_the_wire(frame: UpFrame) -> None:
    assert decode_up(encode(frame)) == frame


@given(DOWN)
def test_frames_down_survive_the_wire(frame: DownFrame) -> None:
    assert decode_down(encode(frame)) == as_read(frame)


@given(st.lists(LOADS, max_size=4))
def test_what_an_agent_passes_on_is_what_it_was_sent(loads: list[SharedLoad]) -> None:
    passed = encode(PassedLoads(tuple(Raw(encode(load)) for load in loads)))
    assert decode_up(passed) == Loads(tuple(loads))


@given(st.binary(max_size=200))
def test_bytes_from_anyone_are_a_frame_or_an_error(data: bytes) -> None:
    for decode in (decode_up, decode_down):
        with suppress(FrameError):
            decode(data)


@given(UP | DOWN, st.data())
def test_a_damaged_frame_is_a_frame_or_an_error(frame: UpFrame | DownFrame, data: st.DataObject) -> None:
    sent = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(sent[: data.draw(st.integers(0, len(sent)))])
    for damaged in (bytes(sent), cut):
        for decode in (decode_up, decode_down):
            with suppress(FrameError):
                decode(damaged)


@given(UP | DOWN, st.dictionaries(st.text("xyz_", min_size=9, max_size=12), st.integers() | st.text(), max_size=3))
def test_fields_of_a_newer_sender_are_ignored(frame: UpFrame | DownFrame, extra: dict[str, Any]) -> None:
    known = msgspec.to_builtins(frame, builtin_types=(bytes,))
    extra = {name: value for name, value in extra.items() if not isinstance(value, int) or abs(value) < 2**63}
    decode = decode_up if isinstance(frame, UpFrame) else decode_down

    assert decode(msgspec.msgpack.encode(known | extra)) == (frame if isinstance(frame, UpFrame) else as_read(frame))


def wire(kind: str, **fields: Any) -> bytes:
    return msgspec.msgpack.encode({"type": kind, **fields})


def test_operations_of_a_newer_sender_may_be_longer_and_of_an_older_one_shorter() -> None:
    keys = pack_keys([5, 6])
    sent = [[0, 0, keys, 1, "new", [7]], [1, keys, 0, {"new": 1}], [2, "new"], [0, 9, keys], [1, keys]]

    assert decode_up(wire("delta", sequence=3, operations=sent)) == Delta(
        sequence=3,
        operations=(
            Stored(0, keys, Tier.HOST),
            Removed(keys, Tier.DEVICE),
            Cleared(),
            Stored(9, keys, Tier.DEVICE),
            Removed(keys, Tier.DEVICE),
        ),
    )


def test_operations_travel_as_arrays() -> None:
    sent = msgspec.msgpack.decode(encode(Delta(sequence=1, operations=(Removed(pack_keys([5])),))))

    assert sent == {"type": "delta", "rank": 0, "sequence": 1, "operations": [[1, pack_keys([5]), 0]]}


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no map": msgspec.msgpack.encode([1, 2]),
    "no type": msgspec.msgpack.encode({"sequence": 1}),
    "unknown type": wire("gossip"),
    "a frame of the other direction": encode(Drain(seconds=1)),
    "something behind the frame": encode(STATE) + b"\xc0",
    "half a frame": encode(HELLO)[:-1],
    "deeply nested": b"\x91" * 200_000,
    "text that is no text": encode(HELLO).replace(b"http://x:8000", b"http://\xff\xfe8000"),
    "a type of bytes": b"\x81\xa4type\xc4\x05delta",
    "a missing field": wire("delta", sequence=1),
    "a negative sequence": wire("delta", sequence=-1, operations=[]),
    "a sequence of text": wire("delta", sequence="1", operations=[]),
    "a fraction for a sequence": wire("delta", sequence=1.5, operations=[]),
    "a rank too high": wire("delta", rank=4096, sequence=1, operations=[]),
    "an unknown operation": wire("delta", sequence=1, operations=[[3, b"\1" * 8]]),
    "an operation that is a map": wire("delta", sequence=1, operations=[{"keys": b"\1" * 8}]),
    "an unknown tier": wire("delta", sequence=1, operations=[[1, b"\1" * 8, 2]]),
    "no keys": wire("delta", sequence=1, operations=[[0, 0, b""]]),
    "seven bytes of a key": wire("delta", sequence=1, operations=[[1, b"\1" * 7]]),
    "nine bytes of keys": wire("delta", sequence=1, operations=[[1, b"\1" * 9]]),
    "the key 0": wire("delta", sequence=1, operations=[[1, bytes(8)]]),
    "the key 0 in a chain": wire("snapshot", sequence=1, part=0, last=True, chains=[[0, 0, pack_keys([1, 0])]]),
    "a chain with a loop": wire("delta", sequence=1, operations=[[0, 0, pack_keys([5, 6, 5])]]),
    "a chain that is its own parent": wire("delta", sequence=1, operations=[[0, 6, pack_keys([5, 6])]]),
    "a negative parent": wire("delta", sequence=1, operations=[[0, -1, pack_keys([5])]]),
    "a removal in a snapshot": wire("snapshot", sequence=1, part=0, last=True, chains=[[1, pack_keys([5])]]),
    "a negative digest": wire("state", sequence=1, digest=-1, held=0, phase="ready", running=0, waiting=0),
    "an unknown phase": wire("state", sequence=1, digest=1, held=0, phase="asleep", running=0, waiting=0),
    "an infinite speed": encode(msgspec.structs.replace(STATE, prefill_tokens_per_second=float("inf"))),
    "a speed that is no number": encode(msgspec.structs.replace(STATE, prefill_tokens_per_second=float("nan"))),
    "a worker without a name": encode(msgspec.structs.replace(HELLO, worker="")),
    "a name too long": encode(msgspec.structs.replace(HELLO, worker="w" * 254)),
    "too many capabilities": encode(
        msgspec.structs.replace(HELLO, capabilities=(Capability(feature="f", mode="m"),) * 65)
    ),
    "a block size of 0": encode(
        msgspec.structs.replace(HELLO, contract=msgspec.structs.replace(CONTRACT, block_size=0))
    ),
    "too many operations": encode(Delta(sequence=1, operations=(Cleared(),) * (MAX_OPERATIONS + 1))),
    "too many keys in one operation": wire("delta", sequence=1, operations=[[1, b"\1" * 8 * (MAX_KEYS_PER_FRAME + 1)]]),
    "too many keys in all": wire(
        "delta", sequence=1, operations=[[1, pack_keys(range(1, MAX_KEYS_PER_FRAME // 2 + 2))]] * 2
    ),
    "too many bytes": b"\xc4" * (MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_frame_up_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_up(data)


HOSTILE_DOWN: dict[str, bytes] = {
    "a frame of the other direction": encode(STATE),
    "a threshold above 1": wire("policy", pool="a/b", generation=1, threshold=1.5),
    "a threshold that is no number": wire("policy", pool="a/b", generation=1, threshold=float("nan")),
    "an unknown preemption": wire("policy", pool="a/b", generation=1, preemption="Drop"),
    "a negative budget": wire("policy", pool="a/b", generation=1, budget_mib=-1),
    "a drain without end": wire("drain", seconds=float("inf")),
    "too many prefixes": wire("warm", prefixes=[{"name": "a"}] * 257),
    "a huge prefix": wire("warm", prefixes=[{"name": "a", "messages": bytes(1024 * 1024 + 1)}]),
}


@pytest.mark.parametrize("data", HOSTILE_DOWN.values(), ids=HOSTILE_DOWN)
def test_what_is_no_frame_down_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_down(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (wire("a secret"), "Invalid value - at `$.type`"),
        (wire("a 'quoted'\nsecret"), "Invalid value - at `$.type`"),
        (
            wire("state", sequence=1, digest=1, held=0, phase="a secret", running=0, waiting=0),
            "enum value - at `$.phase`",
        ),
        (wire("hello", worker="a secret\ud800".encode("utf-8", "surrogatepass")), "Expected `str`, got `bytes`"),
        (b"\x82\xa4type\xa5hello\xa6worker\xa9a secret\xff", "text that is not UTF-8"),
        (bytes(MAX_FRAME_BYTES + 1), f"frame is {MAX_FRAME_BYTES + 1} bytes, the limit is {MAX_FRAME_BYTES}"),
        (HOSTILE["too many keys in all"], f"keys: {MAX_KEYS_PER_FRAME + 2} in one frame, the limit is"),
        (HOSTILE["nine bytes of keys"], "keys: packed keys must be a multiple of 8 bytes, got 9"),
        (HOSTILE["the key 0"], "keys: 0 is not a block key"),
        (HOSTILE["a chain with a loop"], "keys: a key occurs twice in one chain"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_never_what_was_in_it(data: bytes, said: str) -> None:
    with pytest.raises(FrameError) as refused:
        decode_up(data)

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_limits_themselves_are_allowed() -> None:
    keys = pack_keys(range(1, MAX_KEYS_PER_FRAME + 1))

    for operations in ((Stored(0, keys),), (Cleared(),) * MAX_OPERATIONS):
        frame = Delta(sequence=1, operations=operations)
        assert decode_up(encode(frame)) == frame


def test_a_frame_too_large_is_not_sent() -> None:
    prefix = Prefix(name="a", messages=bytes(1024 * 1024))

    with pytest.raises(FrameError, match="the limit is 4194304"):
        encode(Warm(prefixes=(prefix,) * 5))


def test_removals_may_repeat_a_key() -> None:
    twice = Delta(sequence=1, operations=(Removed(pack_keys([5, 5])),))

    assert decode_up(encode(twice)) == twice


def test_chains_unpack_to_their_keys() -> None:
    assert Stored(3, pack_keys([5, 6])).unpack() == Removed(pack_keys([5, 6])).unpack() == [5, 6]
