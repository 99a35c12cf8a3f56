"""The body of a request that is to be held; held requests as a whole are in rendering/test_held_requests.py."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.gateway.upstream.held_answer import PIECE_BYTES, HeldBody
from cachefleet_core.engine.held_requests import GO


@pytest.mark.parametrize("size", [1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
async def test_a_long_body_is_sent_in_pieces_and_then_the_word(size: int) -> None:
    """A piece that is written, and encrypted, at once holds up all other requests."""
    body = HeldBody(b"x" * size)
    body.go()
    *pieces, word = [piece async for piece in body]
    assert (b"".join(pieces), word) == (b"x" * size, GO)
    assert max(map(len, pieces)) <= PIECE_BYTES
