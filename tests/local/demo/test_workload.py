from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from cachefleet_local.demo.workload import Request, Shape, workload

TRACE = workload(Shape())


def of(conversation: int) -> list[Request]:
    return [request for request in TRACE if request.conversation == conversation]


def test_the_same_seed_gives_the_same_trace() -> None:
    assert workload(Shape()) == TRACE
    assert workload(Shape(seed=8)) != TRACE


def test_enough_conversations_are_interleaved() -> None:
    assert len({request.conversation for request in TRACE}) >= 8
    switches = sum(a.conversation != b.conversation for a, b in pairwise(TRACE))
    assert switches > 0.8 * len(TRACE)


def test_the_order_does_not_favour_a_balancer_that_counts() -> None:
    """With a fixed order and an even number of conversations, round robin would be sticky by accident."""
    stays = Counter((a.number - b.number) % 2 for c in range(Shape().conversations) for a, b in pairwise(of(c)))
    assert 0.35 < stays[0] / stays.total() < 0.65


def test_each_conversation_goes_turn_by_turn() -> None:
    for conversation in range(Shape().conversations):
        requests = of(conversation)
        assert [request.turn for request in requests] == list(range(Shape().turns))
        for request in requests:
            roles = [message["role"] for message in request.messages]
            assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]


def test_turns_go_on_from_the_last_one_unless_they_take_some_back() -> None:
    backtracked = 0
    for conversation in range(Shape().conversations):
        for before, after in pairwise(of(conversation)):
            kept = after.messages[: len(before.messages)] == before.messages
            assert kept is not after.backtracked
            backtracked += after.backtracked
            shared = sum(a == b for a, b in zip(before.messages, after.messages, strict=False))
            assert shared >= 2, "even then the beginning stays"
    assert backtracked >= 5


def test_agents_of_a_kind_share_a_long_system_prompt() -> None:
    prompts = Counter(request.messages[0]["content"] for request in TRACE if request.turn == 0)
    assert sorted(prompts.values()) == [6, 6]
    assert all(len(prompt.split()) == Shape().system_words for prompt in prompts)


def test_a_trace_without_work_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one agent"):
        workload(Shape(conversations=0))
