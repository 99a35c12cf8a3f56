"""What a mend is foretold to be worth comes, within the benchmark's bar, when the same chats are played with it."""

import pytest

from bench import mends
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from tests.controlplane.prompt_causes.recorded_chats import TURNS


@pytest.mark.parametrize("template", ["qwen", "deepseek"])
@pytest.mark.parametrize("cause", ["time", "tool_order", "parameters", "tools", "history_edited"])
def test_a_mend_brings_what_was_foretold(cause: str, template: str) -> None:
    [row] = mends.rows(mends.made_up(6), [PromptCause(cause)], [template])
    assert row["ours"] > 10
    assert row["kept"], row


def test_costly_and_mended_requests_come_at_the_same_times() -> None:
    found = mends.made_up(3)
    for habit in mends.HABITS.values():
        costly, mended = (mends.of_clients(found, change) for change in habit)
        assert [one.at for one in costly] == [one.at for one in mended]
        assert len({one.at for one in costly}) == len(costly) == 3 * TURNS
