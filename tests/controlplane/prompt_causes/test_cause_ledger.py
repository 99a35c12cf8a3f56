"""What causes in prompts cost tenants, in the last hour and a day."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger, Place
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause

NOW = 1_800_000_000.0
TIME = Place(PromptCause.TIME, "system", "system")
ORDER = Place(PromptCause.TOOL_ORDER, "tools", "system")
NEW = Place(PromptCause.NEW, "", "")


def test_the_dearest_come_first_with_what_their_mend_is_worth() -> None:
    ledger = CauseLedger()
    ledger.add(("p/a", "acme"), 1000, [(TIME, 300), (NEW, 500)], now=NOW - 1800)
    ledger.add(("p/a", "acme"), 1000, [(TIME, 320), (ORDER, 100)], now=NOW)
    ledger.add(("p/b", "umbrella"), 500, [(ORDER, 400)], now=NOW)
    first, second, third = ledger.offences(None, NOW, most=9)
    assert (first.tenant, first.place, first.tokens, first.points) == ("acme", TIME, 620, 31.0)
    assert first.tokens_a_day == round(620 * 86_400 / 1800)
    assert (second.tenant, second.tokens, second.points) == ("umbrella", 400, 80.0)
    assert second.tokens_a_day == 400 * 144, "of a tenant that came just now, as of ten minutes"
    assert (third.place, third.tokens) == (ORDER, 100)
    assert ledger.offences("p/b", NOW, most=9) == [second]
    assert ledger.offences(None, NOW, most=1) == [first]


def test_what_is_an_hour_ago_is_not_told() -> None:
    ledger = CauseLedger()
    ledger.add(("p", "t"), 100, [(TIME, 64)], now=NOW)
    assert ledger.offences(None, NOW + 3000, most=9)
    assert ledger.offences(None, NOW + 3601, most=9) == []
    ledger.add(("p", "t"), 100, [(TIME, 65)], now=NOW + 7200)
    [one] = ledger.offences(None, NOW + 7200, most=9)
    assert (one.tokens, one.prompt_tokens) == (65, 100)


def test_lines_are_bounded() -> None:
    ledger = CauseLedger(lines=3)
    for number in range(9):
        ledger.add(("p", f"t{number}"), 100, [(TIME, 64)], now=NOW)
    assert {one.tenant for one in ledger.offences(None, NOW, most=99)} == {"t6", "t7", "t8"}


@pytest.mark.parametrize("cause", [PromptCause.NEW, PromptCause.REPEATED, PromptCause.NOT_EXAMINED])
def test_what_cannot_be_mended_is_no_offence(cause: PromptCause) -> None:
    ledger = CauseLedger()
    ledger.add(("p", "t"), 100, [(Place(cause, "", ""), 99)], now=NOW)
    assert ledger.offences(None, NOW, most=9) == []
