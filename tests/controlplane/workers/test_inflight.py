"""What was just sent to a worker is expected there, whatever else was."""

from collections.abc import Sequence

from cachefleet_native import Plane, WorkerRow, pure, shared_blocks
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.reference.inflight import EXPECTED_SECONDS

CHAINS = [chain(1, 12), [*chain(1, 12)[:5], *chain(2, 7)], [*chain(1, 12)[:8], *chain(3, 9)], chain(4, 3)]
prompts = st.tuples(st.sampled_from(CHAINS), st.integers(1, 17)).map(lambda cut: cut[0][: cut[1]])


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(prompts, prompts, st.integers(0, 20))
def test_the_blocks_two_prompts_share_from_some_number_on(a: list[int], b: list[int], at_least: int) -> None:
    at_least = min(at_least, common(a, b))  # what is known already
    assert shared_blocks(pack_keys(a), pack_keys(b), at_least=at_least) == common(a, b)
    assert shared_blocks(pack_keys(a), pack_keys(b), at_least=99) == 99


@given(st.lists(st.tuples(prompts, st.sampled_from([0.0, 0.5, 3.0])), max_size=8), prompts)
def test_the_longest_of_what_is_expected_counts(sent: list[tuple[list[int], float]], asked: list[int]) -> None:
    now = 0.0
    row = Plane().row()
    sent_at = []
    for keys, pause in sent:
        row.begin(pack_keys(keys), 0, 1, 1, 1, 1, 0, now, lambda: None).first_token()
        sent_at.append((now, keys))
        now += pause
    expected = [keys for at, keys in sent_at if now - at < EXPECTED_SECONDS]
    assert pure.expected(row, pack_keys(asked), now) == max((common(asked, keys) for keys in expected), default=0)


ENDS = {"open": True, "first token": True, "over": True, "over, then a Delta": False, "failed": False}


def ended(row: WorkerRow, keys: Sequence[int], how: str) -> None:
    flight = row.begin(pack_keys(keys), 0, 1, 1, 1, 1, 0, 0.0, lambda: None)
    if how not in {"open", "failed"}:
        flight.first_token()
    if how.startswith("over"):
        flight.finish(cached_tokens=0)
    if how == "failed":
        flight.finish()
    if how.endswith("Delta"):
        row.changed()


@given(st.lists(st.tuples(prompts, st.sampled_from([*ENDS])), max_size=8), prompts)
def test_what_is_in_use_or_was_not_told_yet_is_coming(sent: list[tuple[list[int], str]], asked: list[int]) -> None:
    row = Plane().row()
    for keys, how in sorted(sent, key=lambda one: not one[1].endswith("Delta")):
        ended(row, keys, how)
    coming = [keys for keys, how in sent if ENDS[how]]
    assert pure.coming(row, pack_keys(asked), 0.0) == max((common(asked, keys) for keys in coming), default=0)


def test_nothing_is_coming_that_was_sent_long_ago_or_to_an_engine_that_is_gone() -> None:
    row = Plane().row()
    ended(row, CHAINS[0], "first token")
    assert pure.coming(row, pack_keys(CHAINS[0]), EXPECTED_SECONDS) == 0
    assert pure.coming(row, pack_keys(CHAINS[0]), 0.0) == len(CHAINS[0])
    row.restarted()
    assert pure.coming(row, pack_keys(CHAINS[0]), 0.0) == 0
