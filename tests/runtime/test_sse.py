"""Events out of bytes split anywhere."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_runtime.sse import EventSplitter, StreamTooLargeError, event_data, event_name, is_end, is_prelude

EVENTS = [
    b'data: {"text":"\xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x99\x82"}\n\n',
    b": keep-alive\n\n",
    b"data: crossed\r\n\r\n",
    b"event: x\ndata: two lines\n\n",
    b"data: [DONE]\n\n",
]


@given(st.data())
def test_any_split_gives_the_same_events(data: st.DataObject) -> None:
    events = data.draw(st.lists(st.sampled_from(EVENTS), max_size=8))
    stream = b"".join(events) + b"data: cut"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter = EventSplitter(1000)
    got = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for event in splitter.feed(stream[start:end])
    ]
    assert got == events
    assert splitter.rest == b"data: cut"


def test_every_byte_alone() -> None:
    splitter = EventSplitter(1000)
    stream = b"".join(EVENTS)
    assert [event for byte in stream for event in splitter.feed(bytes([byte]))] == EVENTS


@pytest.mark.parametrize("end", [b"", b"\n\n"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_event_is_bounded_with_or_without_its_end(end: bytes, size: int) -> None:
    splitter = EventSplitter(10)
    stream = b"data: x\n\ndata: more than ten bytes" + end
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    with pytest.raises(StreamTooLargeError):
        list(chain.from_iterable(map(splitter.feed, pieces)))


def test_a_long_event_in_many_pieces_is_whole() -> None:
    splitter = EventSplitter(4 << 20)
    long = b"data: " + b"x" * (3 << 20)
    pieces = [long[at : at + 100] for at in range(0, len(long), 100)]
    assert list(chain.from_iterable(map(splitter.feed, [*pieces, b"\n", b"\ndata: y\n\n"]))) == [
        long + b"\n\n",
        b"data: y\n\n",
    ]


@pytest.mark.parametrize("event", [b"\r\n\r\n", b"\n\n", b"x\n\n\r\n\r\n"])
def test_many_short_events_are_not_looked_for_in_the_same_bytes_each_time(event: bytes) -> None:
    """A worker that wrote them would hold up everybody: it took seconds for so many."""
    assert len(list(EventSplitter(1000).feed(event * 300_000))) >= 300_000


@pytest.mark.parametrize(
    ("event", "data"),
    [
        *((EVENTS[1], b""), (EVENTS[2], b"crossed"), (EVENTS[3], b"two lines"), (EVENTS[4], b"[DONE]")),
        *((b"data:x\n\n", b"x"), (b"event: x\r\ndata: y\r\n\r\n", b"y"), (b"event: x\n\n", b"")),
    ],
)
def test_data_of_an_event(event: bytes, data: bytes) -> None:
    assert event_data(event) == data


def test_the_name_of_an_event() -> None:
    assert [event_name(event) for event in EVENTS] == [b"", b"", b"", b"x", b""]
    assert event_name(b"event: y\r\ndata: 1\r\n\r\n") == b"y"


def test_what_begins_and_what_ends_a_stream() -> None:
    assert is_prelude(b"event: response.created\ndata: {}\n\n")
    assert not is_prelude(b"event: message_start\ndata: {}\n\n")
    assert all(map(is_end, (b"data: [DONE]\n\n", b"event: message_stop\ndata: {}\n\n")))
    assert not is_end(b"event: response.created\ndata: {}\n\n")
