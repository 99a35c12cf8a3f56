"""Which blocks a flush means, against prompts written out token by token."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.tenancy import salt_digest
from cachefleet_worker.plugin.flush.selection import Beginning, Selector, meant
from cachefleet_worker.plugin.snapshot.ancestry import Block, Hash
from cachefleet_worker.plugin.snapshot.event_batches import BlockRemoved, BlockStored
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger

SIZE = 2
Extras = tuple[Any, ...] | None


@dataclass(frozen=True)
class Place:
    """All that names a block: everything of its prompt up to its end."""

    tokens: tuple[int, ...]
    salt: str = ""
    adapter: str = ""
    media: tuple[tuple[int, str], ...] = ()
    """Identifiers by block; each begins where its block does."""

    @property
    def blocks(self) -> int:
        return len(self.tokens) // SIZE

    def upto(self, blocks: int) -> Place:
        media = tuple(each for each in self.media if each[0] < blocks)
        return Place(self.tokens[: blocks * SIZE], self.salt, self.adapter, media)

    @property
    def line(self) -> list[Place]:
        return [self.upto(count) for count in range(1, self.blocks + 1)]

    @property
    def hash(self) -> Hash:
        return hash(self) & 0xFFFF_FFFF_FFFF_FFFF

    def extras(self, block: int) -> Extras:
        named = [self.adapter] if self.adapter else []
        seen: list[Any] = [(each, 0) for at, each in self.media if at == block]
        return (*named, *seen, *([self.salt] if self.salt and block == 0 else ())) or None


def stored(prompt: Place) -> BlockStored:
    return BlockStored(
        block_hashes=[each.hash for each in prompt.line],
        parent_block_hash=None,
        token_ids=list(prompt.tokens[: prompt.blocks * SIZE]),
        block_size=SIZE,
        lora_id=1 if prompt.adapter else None,
        medium="GPU",
        lora_name=prompt.adapter or None,
        extra_keys=[prompt.extras(block) for block in range(prompt.blocks)],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


class Engine:
    """Prompts that are cached, and what the ledger makes of their events."""

    def __init__(self, *prompts: Place) -> None:
        self.ledger = ResidentLedger()
        self.cached: set[Place] = set()
        for prompt in prompts:
            self.ledger.apply([stored(prompt)])
            self.cached |= set(prompt.line)

    def evict(self, place: Place) -> None:
        self.ledger.apply([BlockRemoved([place.hash], "GPU", 0)])
        self.cached.discard(place)

    def meant(self, selector: Selector) -> set[Place]:
        by_hash = {place.hash: place for place in self.cached}
        return {by_hash[found] for found in meant(self.ledger.named(), by_hash.keys(), selector)}


def begins(*prompts: Place, **more: Any) -> Selector:
    return Selector(beginnings=tuple(beginning(prompt) for prompt in prompts), **more)


def beginning(prompt: Place) -> Beginning:
    media = tuple((name, at * SIZE, SIZE) for at, name in prompt.media)
    return Beginning(array("I", prompt.tokens).tobytes(), media)


def test_everything_excludes_nothing() -> None:
    engine = Engine(Place((1, 2, 3, 4)), Place((5, 6), "a"))
    assert Selector().everything
    assert engine.meant(Selector()) == engine.cached


def test_a_tenants_blocks_are_those_whose_line_begins_with_its_salt() -> None:
    mine, other, none = Place((1, 2, 3, 4), "a"), Place((1, 2, 3, 4), "b"), Place((1, 2, 3, 4))
    engine = Engine(mine, other, none)
    assert engine.meant(Selector(salts=frozenset({salt_digest("a")}))) == set(mine.line)
    assert engine.meant(Selector(salts=frozenset(map(salt_digest, "ab")))) == {*mine.line, *other.line}
    assert engine.meant(Selector(salts=frozenset({salt_digest("c")}))) == set()


def test_a_block_whose_beginning_was_evicted_still_has_its_tenant() -> None:
    mine = Place((1, 2, 3, 4, 5, 6), "a")
    engine = Engine(mine)
    engine.evict(mine.upto(1))
    engine.evict(mine.upto(2))
    assert engine.meant(Selector(salts=frozenset({salt_digest("a")}))) == {mine}


def test_an_adapters_blocks() -> None:
    plain, adapted = Place((1, 2, 3, 4), "a"), Place((1, 2, 3, 4), "a", "french")
    engine = Engine(plain, adapted)
    assert engine.meant(Selector(adapter="french")) == set(adapted.line)
    assert engine.meant(Selector(adapter="french", salts=frozenset({salt_digest("b")}))) == set()


def test_a_prompt_goes_with_what_continues_it_under_every_salt_and_adapter() -> None:
    kinds = [(token, salt, adapter) for token in (5, 6) for salt in "ab" for adapter in ("", "f")]
    prompts = [Place((1, 2, 3, 4, token, 0), salt, adapter) for token, salt, adapter in kinds]
    other = Place((1, 9, 3, 4))
    engine = Engine(*prompts, other)
    assert engine.meant(begins(Place((1, 2, 3, 4)))) == engine.cached - set(other.line)
    own = {each for prompt in prompts for each in prompt.line if each.salt == "a"}
    assert engine.meant(begins(Place((1, 2, 3, 4)), salts=frozenset({salt_digest("a")}))) == own


def test_what_other_prompts_continue_from_stays() -> None:
    first, second = Place((1, 2, 3, 4, 5, 6)), Place((1, 2, 3, 4, 7, 8))
    engine = Engine(first, second)
    assert engine.meant(begins(first)) == {first}
    engine.evict(second)
    assert engine.meant(begins(first)) == set(first.line)


def test_prompts_that_only_each_other_go_on_from_go_whole() -> None:
    first, second = Place((1, 2, 3, 4, 5, 6)), Place((1, 2, 3, 4, 7, 8))
    engine = Engine(first, second)
    assert engine.meant(begins(first, second)) == engine.cached


class Looked(dict[Hash, Block]):
    """Named blocks that count how often all of them are gone through."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def __iter__(self) -> Iterator[Hash]:
        self.looks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_many_prompts_cost_no_more_looks_at_all_blocks_than_one() -> None:
    prompts = [Place((number, 0, 1, 2)) for number in range(50)]
    engine = Engine(*prompts)
    hashes = {place.hash for place in engine.cached}
    looks = []
    for asked in (prompts[:1], prompts):
        named = Looked(engine.ledger.named())
        assert len(meant(named, hashes, begins(*asked))) == 2 * len(asked)
        looks.append(named.looks)
    assert looks[0] == looks[1]


def test_what_is_left_of_a_prompt_goes_though_its_end_was_evicted() -> None:
    prompt = Place((1, 2, 3, 4, 5, 6))
    engine = Engine(prompt)
    engine.evict(prompt)
    assert engine.meant(begins(prompt)) == {prompt.upto(1), prompt.upto(2)}


def test_tokens_that_fill_no_block_do_not_count() -> None:
    engine = Engine(Place((1, 2, 3, 4)), Place((1, 2, 5, 6)))
    assert engine.meant(begins(Place((1, 2, 3)))) == engine.cached
    assert engine.meant(begins(Place((1,)))) == set()


def test_prompts_with_other_images_are_others() -> None:
    cat, dog = (Place((1, 2, 0, 0, 3, 4), media=((1, name),)) for name in ("cat", "dog"))
    engine = Engine(cat, dog)
    assert engine.meant(begins(cat.upto(2))) == {cat.upto(2), cat}
    assert engine.meant(begins(cat.upto(1))) == engine.cached


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
places = st.builds(Place, tokens, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "f"]))


@given(
    prompts=st.lists(places, max_size=8),
    asked=st.none() | st.lists(tokens, min_size=1, max_size=3),
    salts=st.none() | st.sets(st.sampled_from(["a", "b"]), min_size=1),
    adapter=st.none() | st.just("f"),
    chance=st.randoms(use_true_random=False),
)
def test_it_is_what_the_prompts_say_written_out(
    prompts: list[Place], asked: list[tuple[int, ...]] | None, salts: set[str] | None, adapter: str | None, chance: Any
) -> None:
    engine = Engine(*prompts)
    for place in chance.sample(sorted(engine.cached, key=repr), chance.randrange(len(engine.cached) + 1)):
        engine.evict(place)
    beginnings = None if asked is None else tuple(beginning(Place(each)) for each in asked)
    whole = [each[: len(each) // SIZE * SIZE] for each in asked or () if len(each) >= SIZE]
    digests = None if salts is None else frozenset(map(salt_digest, salts))
    found = engine.meant(Selector(salts=digests, adapter=adapter, beginnings=beginnings))
    assert found == {
        place
        for place in engine.cached
        if (salts is None or place.salt in salts)
        and (adapter is None or place.adapter == adapter)
        and (asked is None or _begun(engine, place, whole))
    }


def _begun(engine: Engine, place: Place, asked: list[tuple[int, ...]]) -> bool:
    if _under(place, asked):
        return True
    return _on_the_way(place, asked) and not any(_needs(other, place, asked) for other in _standing(engine, asked))


def _under(place: Place, asked: list[tuple[int, ...]]) -> bool:
    return any(place.tokens[: len(each)] == each for each in asked)


def _on_the_way(place: Place, asked: list[tuple[int, ...]]) -> bool:
    return any(place.tokens == each[: len(place.tokens)] for each in asked)


def _standing(engine: Engine, asked: list[tuple[int, ...]]) -> list[Place]:
    """Cached blocks off the way to what is asked."""
    return [each for each in engine.cached if not _under(each, asked) and not _on_the_way(each, asked)]


def _needs(other: Place, place: Place, asked: list[tuple[int, ...]]) -> bool:
    """Whether ``other`` comes right after a block on the way that ``place`` is, or is before; all between is cached."""
    parent = other.upto(other.blocks - 1)
    return _on_the_way(parent, asked) and parent.blocks >= place.blocks and parent.upto(place.blocks) == place
