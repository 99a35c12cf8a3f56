"""The fake's block pool and scheduler against the laws of vLLM's."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.block_pool import BlockPool
from tests.fakes.chain import Chains, Link
from tests.fakes.finish import Finish
from tests.fakes.kv_events import Cleared, Event, Removed, Stored
from tests.fakes.sampler import Sampler
from tests.fakes.scheduler import Scheduler, Sequence

BLOCK = 4
EOS = 999


def links(tokens: list[int], salt: str = "") -> list[Link]:
    out: list[Link] = []
    Chains(BLOCK).extend(out, tokens, salt)
    return out


def scheduler(num_blocks: int = 20, *, max_num_seqs: int = 4, max_batched_tokens: int = 64) -> Scheduler:
    sampler = Sampler(range(100), eos=EOS, natural_tokens=1000, follow={})
    return Scheduler(
        BlockPool(num_blocks, BLOCK),
        sampler,
        eos=EOS,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        max_model_len=(num_blocks - 1) * BLOCK,
    )


def drain(engine: Scheduler, limit: int = 5000) -> list[Event]:
    events: list[Event] = []
    for _ in range(limit):
        if not engine.busy:
            return events
        events += engine.update(engine.schedule())[1]
    raise AssertionError("the scheduler does not come to an end")


def run(engine: Scheduler, tokens: list[int], max_tokens: int = 1) -> Sequence:
    sequence = Sequence(list(tokens), max_tokens)
    engine.add(sequence)
    drain(engine)
    return sequence


def test_hashes_commit_to_the_prefix_and_the_salt_of_the_first_block() -> None:
    plain, salted, other = links([1] * 8), links([1] * 8, "a"), links([2] * 4 + [1] * 4)
    assert len({link.digest for link in (*plain, *salted, *other)}) == 6
    assert [link.extra_keys for link in salted] == [("a",), None]


def test_a_hash_is_the_one_vllm_computes() -> None:
    """From real vLLM 0.32: the low 8 bytes of the sha256 of tokens 0..31 with the default seed."""
    out: list[Link] = []
    Chains(32).extend(out, list(range(100)), "")
    hashes = [int.from_bytes(link.digest[-8:], "big") for link in out]
    assert hashes == [13907755898995373680, 17701127471491950661, 18106830556372465016]


def test_the_tail_of_a_chain_is_evicted_before_its_head_and_the_oldest_first() -> None:
    engine = scheduler(num_blocks=9)
    old, young = list(range(16)), list(range(100, 116))
    run(engine, old)
    run(engine, young)
    chain = links(old)
    sequence = Sequence(list(range(200, 208)), 1)
    engine.add(sequence)
    removed = [event.link.digest for event in drain(engine) if isinstance(event, Removed)]
    assert removed == [chain[3].digest, chain[2].digest]


def test_a_touched_chain_outlives_an_older_one() -> None:
    engine = scheduler(num_blocks=9)
    first, second = list(range(16)), list(range(100, 116))
    run(engine, first)
    run(engine, second)
    assert run(engine, first).cached_tokens == 12
    run(engine, list(range(200, 212)))
    assert run(engine, first).cached_tokens == 12


def test_equal_blocks_are_cached_twice_and_each_loss_is_told() -> None:
    engine = scheduler(num_blocks=9)
    tokens = list(range(8))
    for _ in range(3):  # the last block of a fully cached prompt is computed again
        run(engine, tokens)
    assert engine.pool.copies() == 4
    assert len(engine.pool.held()) == 2
    engine.add(Sequence(list(range(100, 128)), 1))
    removed = Counter(event.link.digest for event in drain(engine) if isinstance(event, Removed))
    assert removed[links(tokens)[1].digest] == 3


def test_the_latest_request_is_preempted_and_finishes_later() -> None:
    engine = scheduler(num_blocks=9)
    one, two = Sequence(list(range(12)), 16), Sequence(list(range(100, 112)), 16)
    engine.add(one)
    engine.add(two)
    drain(engine)
    assert (one.preemptions, two.preemptions) == (0, 1)
    assert engine.counters.preemptions == 1
    assert len(one.output) == len(two.output) == 16
    alone = run(scheduler(num_blocks=30), list(range(100, 112)), 16)
    assert two.output == alone.output


def test_a_long_prompt_is_computed_in_chunks_beside_decoding() -> None:
    engine = scheduler(num_blocks=60, max_batched_tokens=8)
    engine.add(Sequence(list(range(20)), 10))
    steps = []
    while engine.busy:
        step = engine.schedule()
        steps.append(step.tokens)
        engine.update(step)
    assert steps[:4] == [8, 8, 4, 1]
    assert len(steps) == 12


def test_clearing_needs_an_idle_pool() -> None:
    engine = scheduler()
    sequence = Sequence(list(range(10)), 5)
    engine.add(sequence)
    engine.update(engine.schedule())
    assert not engine.pool.clear()
    engine.abort(sequence)
    assert sequence.finish is Finish.ABORT
    assert engine.pool.clear()
    assert engine.pool.take_events() == [Cleared()]
    assert engine.pool.held() == []


@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(8, 40),
    max_num_seqs=st.integers(1, 6),
    max_batched_tokens=st.integers(6, 64),
)
def test_under_any_load_nothing_leaks_and_events_tell_the_truth(
    seed: int, num_blocks: int, max_num_seqs: int, max_batched_tokens: int
) -> None:
    chance = random.Random(seed)
    engine = scheduler(num_blocks, max_num_seqs=max_num_seqs, max_batched_tokens=max_batched_tokens)
    told: Counter[bytes] = Counter()
    sequences: list[Sequence] = []
    for _ in range(chance.randrange(60)):
        if chance.random() < 0.5:
            sequences.append(_random_sequence(chance, (num_blocks - 1) * BLOCK))
            engine.add(sequences[-1])
        elif chance.random() < 0.2 and sequences:
            engine.abort(chance.choice(sequences))
        else:
            step = engine.schedule()
            _follow(told, engine.update(step)[1])
            assert step.tokens <= max_batched_tokens
        assert len(engine.running) <= max_num_seqs
    _follow(told, drain(engine))
    _follow(told, engine.pool.take_events())
    assert engine.pool.free == num_blocks - 1
    assert {link.digest for link in engine.pool.held()} == set(told)
    assert engine.pool.copies() == told.total() <= num_blocks - 1
    assert all(sequence.finish is not None and not sequence.blocks for sequence in sequences)
    assert all((s.cached_tokens or 0) < s.prompt_tokens and (s.cached_tokens or 0) % BLOCK == 0 for s in sequences)


def _random_sequence(chance: random.Random, capacity: int) -> Sequence:
    prompt = [chance.choice((1, 2)) for _ in range(chance.randint(1, capacity - 2))]
    return Sequence(prompt, chance.randint(1, max(1, capacity - len(prompt))), salt=chance.choice(("", "a")))


def _follow(told: Counter[bytes], events: list[Event]) -> None:
    for event in events:
        match event:
            case Stored(links=stored):
                told.update(link.digest for link in stored)
            case Removed(link):
                assert told[link.digest] > 0
                told[link.digest] -= 1
                told += Counter()
            case Cleared():
                told.clear()
