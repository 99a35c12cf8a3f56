"""What was just sent to a worker is expected there, whatever else was."""

from cachefleet_native import Plane, pure, shared_blocks
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
