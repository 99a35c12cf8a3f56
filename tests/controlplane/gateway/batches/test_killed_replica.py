"""The process of the replica that runs a batch is killed: another one ends it, and every line is told once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.batches.running import OVER, line
from tests.controlplane.gateway.harness import MODEL, engine
from tests.controlplane.replicas import replica

LINES = 40


async def seen(asking: openai.AsyncOpenAI, batch: str, wanted: Any) -> Any:
    """The batch once it is as wanted."""
    for _ in range(1500):
        if wanted(found := await asking.batches.retrieve(batch)):
            return found
        await asyncio.sleep(0.1)
    raise TimeoutError(batch)


@pytest.mark.slow
async def test_a_batch_goes_on_after_a_kill(tmp_path: Path, database_url: str) -> None:
    """A lease has to end first: that is why it takes so long."""
    settings = {"database_url": database_url, "batches": True, "replicas": 2, "shared_store": True}
    async with engine(inter_token_seconds=0.05) as worker:
        workers = {"demo-0": worker}
        async with replica(tmp_path, "a", workers, **settings) as one:
            async with clients(one.gateway, model=MODEL).openai as asking:
                content = b"\n".join(line(str(number)) for number in range(LINES))
                file = await asking.files.create(file=("in.jsonl", content), purpose="batch")
                begun = await asking.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                await seen(asking, begun.id, lambda batch: batch.request_counts.completed >= 3)
            one.process.kill()
            await one.process.wait()
        async with (
            replica(tmp_path, "b", workers, **settings) as other,
            clients(other.gateway, model=MODEL).openai as asking,
        ):
            batch = await seen(asking, begun.id, lambda batch: batch.status in OVER)
            output = (await asking.files.content(batch.output_file_id)).text.splitlines()
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", LINES, None)
    names = Counter(text.partition('"custom_id":"')[2].partition('"')[0] for text in output)
    assert names == {str(number): 1 for number in range(LINES)}
