"""Which lines about agents' connections are logged."""

import pytest

from cachefleet_controlplane.report_server import peer_log
from cachefleet_controlplane.report_server.peer_log import LINE_SECONDS, PeerLog


def test_an_address_has_a_line_a_minute_for_each_event_with_a_count() -> None:
    now = 0.0
    log = PeerLog(lambda: now)
    assert [log.omitted("10.0.0.1", "busy") for _ in range(4)] == [0, None, None, None]
    assert [log.omitted("10.0.0.1", "silent"), log.omitted("10.0.0.2", "busy")] == [0, 0]
    now = LINE_SECONDS - 1
    assert log.omitted("10.0.0.1", "busy") is None
    now = LINE_SECONDS
    assert [log.omitted("10.0.0.1", "busy") for _ in range(2)] == [4, None]
    now = 2 * LINE_SECONDS
    assert log.omitted("10.0.0.1", "busy") == 1


def test_the_addresses_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_log, "MAX_LINES", 3)
    log = PeerLog(lambda: 0.0)
    for number in range(10):
        assert log.omitted(str(number), "busy") == 0
    assert len(log) == 3
    assert [log.omitted("9", "busy"), log.omitted("0", "busy")] == [None, 0]
