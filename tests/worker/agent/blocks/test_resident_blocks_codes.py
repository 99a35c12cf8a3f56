"""The residents in both codes say the same, operation by operation."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cachefleet_core.block_identity.adapters import path_revision
from cachefleet_core.native import Code
from cachefleet_worker.agent.blocks.block_events import AllBlocksCleared, BlockRemoved, BlockStored
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from tests.core.codes import over_both
from tests.worker.agent.model import CONTRACT, INDEX_KEY

REVISION = st.sampled_from([1, path_revision("/a"), path_revision("/b")])
MEDIA = st.lists(
    st.tuples(st.sampled_from(["i", "j"]), st.integers(-9, 9)).map(lambda one: Raw(msgspec.msgpack.encode(one))),
    max_size=2,
)
TOKEN = st.integers(0, 2**32 - 1) | st.integers(0, 1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[list[Any]]]:
    """A block size and batches of events; hashes name what is stored, parents and removals mostly something stored."""
    size = draw(st.sampled_from([1, 3, 16, 32]))
    hashes = [0]
    batches: list[list[Any]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, 12))):
        batch = batches[draw(st.integers(0, len(batches) - 1))]
        medium = draw(st.sampled_from(["GPU", "GPU", "CPU"]))
        match draw(st.sampled_from(["store", "store", "store", "remove", "clear"])):
            case "store":
                count = draw(st.integers(1, 4))
                parent = draw(st.none() | st.sampled_from(hashes))
                new = list(range(len(hashes), len(hashes) + count))
                tokens = draw(st.lists(TOKEN, min_size=size * count, max_size=size * count))
                lora = draw(st.sampled_from([None, "adapter"]))
                hashes += new
                revision = draw(REVISION) if lora else None
                media = draw(st.none() | st.lists(MEDIA, min_size=count, max_size=count))
                told: dict[str, Any] = {"medium": medium, "lora_name": lora, "lora_id": revision, "extra_keys": media}
                batch.append(BlockStored([*new], parent, tokens, size, **told))
            case "remove":
                batch.append(BlockRemoved([draw(st.sampled_from(hashes))], medium))
            case _:
                batch.append(AllBlocksCleared())
    return size, batches


@over_both
@given(histories())
def test_both_codes_say_the_same_of_any_history(code: Code, history: tuple[int, list[list[Any]]]) -> None:
    size, batches = history
    twin = Residents(INDEX_KEY, CONTRACT, block_size=size, remembered=8)
    made = Residents(INDEX_KEY, CONTRACT, block_size=size, remembered=8, code=code)
    for batch in batches:
        twin.apply(batch)
        made.apply(batch)
        assert (made.take(), made.digest, made.held) == (twin.take(), twin.digest, twin.held)
    assert made.snapshot() == twin.snapshot()
    assert made.counts == twin.counts
