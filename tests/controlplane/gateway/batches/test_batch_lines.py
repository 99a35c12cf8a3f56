"""Lines of input files: what is refused with which code, and which lines run together."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.batches.batch_lines import places_of, prompt_order
from cachefleet_controlplane.gateway.batches.batch_object import BatchBounds
from cachefleet_controlplane.gateway.batches.input_file import InputFile
from cachefleet_controlplane.gateway.batches.spare_room import SpareRoom
from cachefleet_controlplane.gateway.batches.validation import MAX_ERRORS, Validation
from cachefleet_controlplane.gateway.files.file_object import PART_BYTES, KeptFile
from cachefleet_core.tenancy import TenantId

CHAT = "/v1/chat/completions"
KEY = b"k" * 32
BOUNDS = BatchBounds(lines=3, line_bytes=PART_BYTES)


class Parts:
    """A file in parts, as kept files give them."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def part(self, _: KeptFile, number: int) -> bytes:
        return self.content[number * PART_BYTES : (number + 1) * PART_BYTES]


def opened(content: bytes) -> InputFile:
    own: dict[str, Any] = {
        "id": "f",
        "name": "f",
        "purpose": "batch",
        "status": "processed",
        "created": 0,
        "expires": 1,
    }
    return InputFile(Parts(content), KeptFile(tenant=TenantId("a"), bytes=len(content), **own))  # type: ignore[arg-type]


def line(custom_id: str = "a", **changes: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | changes.pop("body", {})
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes).encode()


def checked(content: bytes) -> Validation:
    validation = Validation(CHAT, BOUNDS, KEY)
    asyncio.run(validation.read(opened(content)))
    return validation


def test_sound_lines_have_their_places_in_the_file() -> None:
    content = (
        b"\n" + line("a") + b"\n  \r\n" + line("b") + b"\n" + line("c", body={"pad": "x" * PART_BYTES})[:0] + line("c")
    )
    found = checked(content)
    assert (found.errors, found.model) == ([], "m")
    assert [one.at.number for one in found.waiting()] == [2, 4, 5]
    file = opened(content)
    read = [json.loads(asyncio.run(file.line(one.at)))["custom_id"] for one in found.waiting()]
    assert read == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (line() + b"\nnope", "invalid_json_line", 2),
        (b"[1]", "invalid_json_line", 1),
        (b'{"custom_id": "a", "method": "POST", "url": "x"}', "missing_required_parameter", 1),
        (line(""), "invalid_custom_id", 1),
        (line(custom_id=7), "invalid_request", 1),  # type: ignore[arg-type]
        (line() + b"\n\n" + line(), "duplicate_custom_id", 3),
        (line(method="GET"), "invalid_method", 1),
        (line(url="/v1/embeddings"), "invalid_url", 1),
        (line(body={"stream": True}), "invalid_request", 1),
        (line(body={"model": 7}), "invalid_request", 1),
        (line("a") + b"\n" + line("b", body={"model": "n"}), "mismatched_model", 2),
        (b"\n".join(line(str(number)) for number in range(4)), "too_many_requests", None),
        (line() + b"\n" + b"x" * (2 * PART_BYTES), "invalid_json_line", 2),
    ],
)
def test_what_is_refused(content: bytes, code: str, number: int | None) -> None:
    errors = checked(content).errors
    assert [(error.code, error.line) for error in errors] == [(code, number)]


def test_not_every_error_is_told() -> None:
    assert len(checked(b"nope\n" * 1000).errors) == MAX_ERRORS


@given(st.lists(st.integers(0, 3 * PART_BYTES), max_size=5), st.sampled_from([b"", b"\n"]))
def test_lines_over_parts_are_read_whole(sizes: list[int], end: bytes) -> None:
    lines = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    file = opened(b"\n".join(lines) + end)

    async def read() -> list[tuple[int, bytes, bytes]]:
        found = [each async for some in file.lines(longest=4 * PART_BYTES) for each in some]
        return [(at.number, text, await file.line(at)) for at, text in found]

    wanted = [(number, text, text) for number, text in enumerate(lines, 1) if text]
    assert asyncio.run(read()) == wanted


@given(st.permutations(["ab", "abc", "ab" * 40, "ab" * 40 + "x", "c" * 300 + "1", "c" * 300 + "2", "d"]))
def test_lines_that_begin_alike_run_one_after_the_other(prompts: list[str]) -> None:
    places = places_of([prompt_order(prompt.encode(), KEY) for prompt in prompts])
    assert sorted(places) == list(range(len(prompts)))
    in_turn = [prompt for _, prompt in sorted(zip(places, prompts, strict=True))]
    for alike in (("ab" * 40, "ab" * 40 + "x"), ("c" * 300 + "1", "c" * 300 + "2")):
        assert abs(in_turn.index(alike[0]) - in_turn.index(alike[1])) == 1


def test_an_order_tells_nothing_without_its_key() -> None:
    assert prompt_order(b"prompt", KEY) != prompt_order(b"prompt", b"l" * 32)


def test_spare_room_opens_slowly_and_closes_at_once() -> None:
    room = SpareRoom(8)
    assert room.lines == 2
    for _ in range(100):
        room.answered()
    assert room.lines == 8
    room.refused(10.0, seconds=5)
    room.refused(10.0, seconds=3)
    assert (room.lines, room.open(14.9), room.open(15.0)) == (4, False, True)
    for now in range(20, 100, 10):
        room.refused(now, seconds=1)
    assert room.lines == 1
    assert SpareRoom(0).lines == 1
