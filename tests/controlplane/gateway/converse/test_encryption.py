"""What is stored of a conversation can be read by nobody else, and not under another name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.converse.encryption import ConversationHistory, HistoryCipher, HistoryError
from cachefleet_core.tenancy import FleetKey, TenantId

ACME, OTHER = TenantId("acme"), TenantId("umbrella")
KEY = FleetKey(b"k" * 32).history_key
HISTORY = ConversationHistory(items=b'[{"role":"user","content":"secret"}]', response=b'{"id":"r1"}')


def test_it_comes_back_as_it_was() -> None:
    sealed = HistoryCipher(KEY).seal(HISTORY, tenant=ACME, response="r1")
    assert HistoryCipher(KEY).open(sealed, tenant=ACME, response="r1") == HISTORY
    assert b"secret" not in sealed
    assert sealed != HistoryCipher(KEY).seal(HISTORY, tenant=ACME, response="r1")


@pytest.mark.parametrize(
    ("key", "tenant", "response"),
    [(KEY, OTHER, "r1"), (KEY, ACME, "r2"), (FleetKey(b"l" * 32).history_key, ACME, "r1")],
)
def test_it_opens_for_its_tenant_its_response_and_its_fleet(key: bytes, tenant: TenantId, response: str) -> None:
    sealed = HistoryCipher(KEY).seal(HISTORY, tenant=ACME, response="r1")
    with pytest.raises(HistoryError):
        HistoryCipher(key).open(sealed, tenant=tenant, response=response)


@given(st.data())
def test_what_was_changed_does_not_open(data: st.DataObject) -> None:
    sealed = bytearray(HistoryCipher(KEY).seal(HISTORY, tenant=ACME, response="r1"))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(HistoryError):
        HistoryCipher(KEY).open(bytes(sealed), tenant=ACME, response="r1")
    with pytest.raises(HistoryError):
        HistoryCipher(KEY).open(bytes(sealed[:place]), tenant=ACME, response="r1")
