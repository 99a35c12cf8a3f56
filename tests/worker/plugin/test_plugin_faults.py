from __future__ import annotations

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults


def fail() -> None:
    raise KeyError("x")


def test_a_fault_goes_no_further_and_the_feature_is_off() -> None:
    capabilities = Capabilities()
    capabilities.add("gate", "in_loop")
    capabilities.add("budget", "blocks")
    faults = Faults(capabilities)
    with faults.guard("gate"):
        fail()
    assert not faults.on("gate")
    assert faults.on("budget")
    assert [(each.feature, each.mode, each.reason) for each in capabilities.document()] == [
        ("gate", "off", "fault: KeyError"),
        ("budget", "blocks", ""),
    ]


def test_faults_are_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(Capabilities())
    for _ in range(3):
        with faults.guard("gate"):
            fail()
    assert faults.counts == {"gate": 3}
    assert len(caplog.records) == 1
    assert "gate failed and is off until the engine restarts" in caplog.text
    assert caplog.records[0].exc_info


def test_what_belongs_together_goes_together() -> None:
    faults = Faults(Capabilities())
    with faults.guard("finish_reason", "streaming"):
        fail()
    assert not faults.on("finish_reason")
    assert not faults.on("streaming")
    assert faults.counts == {"finish_reason": 1}


def test_an_end_of_the_process_is_no_fault() -> None:
    with pytest.raises(KeyboardInterrupt), Faults(Capabilities()).guard("gate"):
        raise KeyboardInterrupt


def test_a_fault_of_one_answer_turns_nothing_off_and_each_kind_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults(Capabilities())
    for error in (KeyError("a"), KeyError("b"), ValueError("c")):
        faults.tell("/keys", error)
    assert faults.on("/keys")
    assert faults.counts == {"/keys": 3}
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "cachefleet: /keys: KeyError",
        "cachefleet: /keys: ValueError",
    ]
