"""What an answer, or none, says of the worker that was asked."""

from tests.controlplane.gateway.harness import engine, front
from tests.controlplane.gateway.retry.test_failover import Stalls, serving
from tests.controlplane.waiting import value


async def test_a_worker_silent_from_the_start_rests_and_its_request_is_not_retried() -> None:
    async with serving(Stalls(first=False)) as hung, engine() as good, front([hung, good], idle_seconds=0.2) as gate:
        status, _, _ = await gate.chat("x")
        assert (status, hung.asked) == (504, 1)
        assert [worker.name for worker in gate.fleet.view().workers if worker.backing_off] == ["demo-0"]
        assert value(gate.metrics, "attempt_retries_total", reason="silent") == 0


async def test_a_refusal_is_no_first_token() -> None:
    async with engine() as only, front([only]) as gate:
        for _ in range(4):
            gate.fleet.worker_failed("default/demo/demo-0")
        for changes, status, resting in (({"n": 0}, 400, True), ({}, 200, False)):
            assert (await gate.chat("x", **changes))[0] == status
            assert gate.fleet.view().workers[0].backing_off is resting
