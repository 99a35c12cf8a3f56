"""The benchmark of turns by handle: how long conversations are, bytes that are counted, rows that are judged."""

import itertools
import socket
from urllib.parse import urlsplit

import pytest

from bench.continuation import rows_of
from bench.continuation_models import FAMILIES, Family
from bench.continuation_sides import Turn
from bench.continuation_work import LENGTHS, MESSAGES, Writer
from bench.relay import Relay
from tests.worker.plugin.tokens.styles import BIG, trained


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_conversation_is_as_long_as_it_says_and_grows_by_what_is_new(family: Family) -> None:
    tokenizer = trained(family.style, BIG)
    first, second = itertools.islice(Writer(family, seed=1).turns(8_000), 2)
    assert len(first) == MESSAGES - 1
    assert 7_500 < sum(len(tokenizer.encode(message["content"]).ids) for message in first) < 8_300
    assert second[: len(first)] == first
    assert [message["role"] for message in second[-2:]] == ["assistant", "user"]


def test_a_relay_counts_what_goes_to_the_server_and_passes_on_both_ways() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Relay(f"http://127.0.0.1:{server.getsockname()[1]}").running() as relay,
        socket.create_connection(("127.0.0.1", urlsplit(relay.url).port or 0)) as client,
        server.accept()[0] as there,
    ):
        client.sendall(b"question")
        assert there.recv(100) == b"question"
        there.sendall(b"a longer answer")
        assert client.recv(100) == b"a longer answer"
        assert relay.sent == len(b"question")
        client.shutdown(socket.SHUT_WR)
        assert there.recv(100) == b""


def test_rows_are_medians_and_judged_where_there_is_a_bar() -> None:
    ours, stock = Turn(0.05, 0.01, 0.02, 300, "d"), Turn(0.1, 0.1, 0.2, 20_000, "")
    found = rows_of("M, 64k", LENGTHS[1], [(ours, stock)] * 3)
    assert [one["ratio"] for one in found] == [0.015, pytest.approx(0.1), pytest.approx(0.1), 0.5]
    assert [one.get("kept") for one in found] == [True, True, None, True]
    short = rows_of("M, 8k", LENGTHS[0], [(stock, ours)])
    assert [one.get("kept") for one in short] == [None, None, None, False]
