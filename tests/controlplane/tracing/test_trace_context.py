"""W3C Trace Context: what is valid, what is written, and that one reads the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.tracing.trace_context import TraceContext, continued, incoming_context, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16), sampled=True)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-02\t", False),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f"01-{TRACE}-{SPAN}-01", True),
    ],
)
def test_what_is_valid_is_read(text: str, *, sampled: bool) -> None:
    assert parse(text.encode()) == TraceContext(int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_not_valid_is_nobodys_context(text: str) -> None:
    assert parse(text.encode()) is None


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read(trace: int, span: int, sampled: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    context = TraceContext(trace, span, sampled)
    assert parse(context.header()[1]) == context


@given(st.binary(max_size=80))
def test_anything_can_be_read(sent: bytes) -> None:
    context = parse(sent)
    assert context is None or (context.trace_id and context.span_id)


def test_two_of_them_are_none() -> None:
    assert incoming_context([CONTEXT.header()]) == CONTEXT
    assert incoming_context([CONTEXT.header()] * 2) is None
    assert incoming_context([(b"tracestate", b"a=1")]) is None


def test_a_state_goes_with_its_parent_alone() -> None:
    headers = [(b"x", b"1"), (b"traceparent", b"old"), (b"tracestate", b"a=1")]
    assert continued(headers, CONTEXT, state=True) == [(b"x", b"1"), (b"tracestate", b"a=1"), CONTEXT.header()]
    assert continued(headers, CONTEXT, state=False) == [(b"x", b"1"), CONTEXT.header()]
