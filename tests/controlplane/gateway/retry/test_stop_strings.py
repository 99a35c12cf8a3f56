"""Stop strings across the seam: whatever the cut, the text is that of one worker alone."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.retry.stop_strings import StopGuard

TEXT = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What one worker alone says: up to the stop string that is complete first, of several the first named."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(TEXT, STOPS, st.data())
def test_the_text_is_that_of_one_worker(text: str, stops: list[str], data: st.DataObject) -> None:
    whole, stop = first_stop(text, stops)
    cut = data.draw(st.integers(0, len(text)))
    said, rest = text[:cut], text[cut:]
    if first_stop(said, stops)[1] is not None:
        return  # the first worker has stopped by itself
    rest, own_stop = first_stop(rest, stops)
    guard = StopGuard(stops, said)
    out = said[: len(said) - guard.kept_back]
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        piece, rest = rest[:size], rest[size:]
        out += guard.feed(piece)
    out += guard.feed("", last=True, stop=own_stop or "")
    assert (out, guard.stopped or own_stop) == (whole, stop)


@given(TEXT, STOPS)
def test_where_stop_strings_are_said_nothing_waits(text: str, stops: list[str]) -> None:
    guard = StopGuard(stops, text, included=True)
    assert guard.kept_back == 0
    if first_stop(text + "c", stops)[1] is None:
        assert guard.feed("c") == "c"


def test_a_stop_string_over_the_seam_ends_the_answer() -> None:
    guard = StopGuard(["END"], "all of it. EN")
    assert guard.kept_back == 2
    assert (guard.feed("D and more"), guard.stopped, guard.feed("more")) == ("", "END", "")

    guard = StopGuard(["END"], "all of it. EN", included=True)
    assert (guard.feed("D and more"), guard.stopped) == ("D", "END")
