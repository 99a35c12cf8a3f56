"""A batch of the official client before real vLLM: every line answered once, and one refused by vLLM itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cachefleet_controlplane.store.database import Database
from e2e.engine.vllm import VllmServer
from tests.controlplane.gateway.batches.running import Batches, line

LINES = 6


async def test_vllm_answers_every_line_of_a_batch(vllm_server: VllmServer, tmp_path: Path) -> None:
    options = vllm_server.options
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        batches = Batches(database)
        served = batches.served([vllm_server], model=options.model, key=options.api_key, idle_seconds=120)
        async with served as gate, gate.running():
            lines = [line(str(number), f"tell me of {number}", model=options.model) for number in range(LINES)]
            wrong = line("wrong", model=options.model, temperature=-1)
            batch = await gate.ended(await gate.begun([*lines, wrong]), seconds=300)
            output, errors = await gate.told(batch.output_file_id), await gate.told(batch.error_file_id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", LINES, 1)
    assert [one["custom_id"] for one in output] == [str(number) for number in range(LINES)]
    bodies = [one["response"]["body"] for one in output]
    assert {body["object"] for body in bodies} == {"chat.completion"}
    assert all(body["usage"]["completion_tokens"] > 0 for body in bodies)
    assert (errors[0]["custom_id"], errors[0]["response"]["status_code"]) == ("wrong", 400)
