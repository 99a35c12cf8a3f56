"""A form is the same however it arrives, and what is none is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.wire.multipart_form import (
    MAX_HEADER,
    FormError,
    MultipartForm,
    PartEnd,
    PartHead,
    boundary_of,
)

BOUNDARY = b"x-y"
CONTENTS = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--x", b"\r\n--x", b"\r\n--x-", b"a", b"\x00"])).map(b"".join)


def form(parts: list[tuple[str, bytes]], *, end: bytes = b"--\r\n") -> bytes:
    made = b""
    for name, content in parts:
        made += b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\n\r\n' % (BOUNDARY, name.encode())
        made += content + b"\r\n"
    return made + b"--" + BOUNDARY + end


def read(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    reader, found = MultipartForm(BOUNDARY), list[tuple[str, bytes]]()
    content = b""
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PartHead):
                name, content = event.name, b""
            elif isinstance(event, PartEnd):
                found.append((name, content))
            else:
                content += event
    reader.close()
    return found


def named(head: bytes) -> tuple[str, str | None]:
    [found] = MultipartForm(BOUNDARY).feed(head)
    assert isinstance(found, PartHead)
    return found.name, found.filename


def parts_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@given(st.lists(st.tuples(st.sampled_from(["file", "purpose"]), CONTENTS), min_size=1, max_size=4), st.data())
def test_a_form_is_the_same_however_it_arrives(parts: list[tuple[str, bytes]], data: st.DataObject) -> None:
    parts = [(name, content) for name, content in parts if b"\r\n--" + BOUNDARY not in content + b"\r"]
    sent = form(parts)
    assert read(parts_of(sent, data.draw(st.lists(st.integers(0, 10_000), max_size=20)))) == parts
    assert read([sent[at : at + 1] for at in range(len(sent))]) == parts


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_are_a_form_or_an_error(data: bytes, cuts: list[int]) -> None:
    try:
        read(parts_of(data, cuts))
    except FormError:
        return
    assert b"--" + BOUNDARY + b"--" in data


def test_a_long_file_is_given_on_as_it_comes() -> None:
    reader = MultipartForm(BOUNDARY)
    reader.feed(form([("file", b"")]).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    for _ in range(100):
        given = reader.feed(b"\r\n--x" * 10_000)
        assert abs(sum(len(piece) for piece in given if isinstance(piece, bytes)) - 50_000) < 100


def test_the_lines_of_a_head_are_kept() -> None:
    [found] = MultipartForm(BOUNDARY).feed(b"--x-y\r\ncontent-disposition: form-data; name=a\r\nX: y: z\r\n\r\n")
    assert found == PartHead("a", None, b"content-disposition: form-data; name=a\r\nX: y: z\r\n")


def test_names_are_read_as_clients_write_them() -> None:
    head = b'--x-y\r\nContent-Disposition: form-data; name="fi\\"le"; filename="\xc3\xa4%22.jsonl"\r\nA: b\r\n\r\n'
    assert named(head) == ('fi"le', 'ä".jsonl')
    plain = b"--x-y\r\ncontent-disposition: form-data; name=purpose\r\n\r\n"
    assert named(plain) == ("purpose", None)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (form([("file", b"a")])[:-4], "cut off"),
        (form([("file", b"a")], end=b"??"), "cut off"),
        (b"--x-y??", "begin"),
        (b"--x-y\r\nA: b\r\n\r\n", "with a `name`"),
        (b"--x-y\r\n" + b"a" * (MAX_HEADER + 1), "broken: .*header size"),
        (b"", "cut off"),
    ],
)
def test_what_is_no_form(sent: bytes, words: str) -> None:
    with pytest.raises(FormError, match=words):
        read([sent])


@pytest.mark.parametrize(
    ("told", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        (b"application/json", None),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=" + b"a" * 71, None),
    ],
)
def test_boundaries(told: bytes, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(FormError, match="boundary"):
            boundary_of(told)
    else:
        assert boundary_of(told) == boundary
