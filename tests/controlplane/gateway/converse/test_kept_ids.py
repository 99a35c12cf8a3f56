"""Where an answer is taken up: never in the midst of a character."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.retry.detokenizer import kept_ids


async def by_bytes(ids: Sequence[int]) -> str | None:
    """A tokenizer of bytes."""
    return bytes(ids).decode(errors="replace")


@given(st.text("ab\u00e9\u20ac\U0001f600", max_size=30), st.data())
async def test_only_whole_characters_are_kept(text: str, data: st.DataObject) -> None:
    whole = list(text.encode())
    produced = whole[: data.draw(st.integers(0, len(whole)))]
    kept = await kept_ids(produced, by_bytes)
    assert kept is not None
    said = bytes(produced[:kept]).decode()
    assert text.startswith(said)
    assert len(produced) - kept < 4
    assert bytes(produced).decode(errors="ignore") == said


async def test_text_that_shows_such_a_character_for_long_is_kept() -> None:
    async def odd(_: Sequence[int]) -> str | None:
        return "\N{REPLACEMENT CHARACTER}"

    assert await kept_ids(list(range(40)), odd) == 40


async def test_nobody_goes_on_where_nobody_can_tell() -> None:
    async def silent(_: Sequence[int]) -> str | None:
        return None

    assert await kept_ids([1, 2], silent) is None
    assert await kept_ids([], silent) == 0
