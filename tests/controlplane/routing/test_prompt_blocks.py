"""Blocks of requests of several sequences."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.routing.decision import Prompt
from cachefleet_controlplane.routing.prompt_blocks import needed_blocks, wanted_blocks


def prompt(*, prompts: int = 1, choices: int = 1, most_blocks: int = 0) -> Prompt:
    """Of 10 blocks, and answers of 2."""
    return Prompt(160, block_size=16, max_tokens=32, prompts=prompts, choices=choices, most_blocks=most_blocks)


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        (prompt(), 12),
        (prompt(choices=8), 10 + 8 * 2),
        (prompt(prompts=100), 100 * 12),
        (prompt(prompts=3, choices=2), 3 * (10 + 2 * 2)),
        (prompt(prompts=100, most_blocks=50), 50),
        (prompt(prompts=100, most_blocks=5), 12),
        (Prompt(prompts=100, choices=8), 0),
    ],
)
def test_choices_share_their_prompt_and_prompts_nothing(asked: Prompt, needed: int) -> None:
    assert needed_blocks(asked) == needed


def test_room_is_left_beside_several_sequences() -> None:
    assert wanted_blocks(prompt(most_blocks=50)) == 12
    assert wanted_blocks(prompt(prompts=100, most_blocks=50)) == 50 + 25
    assert wanted_blocks(prompt(choices=2, most_blocks=5000)) == 2 * 14
    assert wanted_blocks(prompt(choices=2)) == 14  # nobody tells how many there are
