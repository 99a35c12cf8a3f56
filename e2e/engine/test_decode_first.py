"""A Prefill and a Decode worker of real vLLM that share computed blocks through a folder: vLLM's example connector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.long_answers import CHAT, COMPLETION, Said, ask
from e2e.engine.storm import prompts

BLOCK: Final = 32
REPORT_SECONDS: Final = 60.0
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: {name}}}
spec:
  model: {{name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}}
  role: {role}
  engine:
    maxModelLen: 1900
    dtype: float32
    kvTransfer:
      kv_connector: ExampleConnector
      kv_role: kv_both
      kv_connector_extra_config: {{shared_storage_path: {storage}}}
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 506}}
  prefixCache: {{budgetMiB: 2}}
  hit: {{threshold: {threshold}}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("decode-first")
    storage = folder / "storage"
    storage.mkdir()
    pools = folder / "pools.yaml"
    pools.write_text(
        "---".join(
            POOL.format(name=role.lower(), role=role, storage=storage, threshold=threshold)
            for role, threshold in (("Prefill", 0.0), ("Decode", 0.5))
        )
    )
    with running_up(pools, folder) as up:
        yield up


@pytest.fixture(autouse=True)
def _whole(fleet: Up) -> None:
    until(lambda: fleet.live(2), READY_SECONDS, "whole")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_b16_what_decode_does_not_hold_is_computed_by_prefill(fleet: Up, *, stream: bool) -> None:
    """The decode worker then finds it where the prefill worker left it, and the next time in its own cache."""
    (prompt,) = prompts(31 + stream, count=1, length=400)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "stream": stream}
    before = _held(fleet)
    cold = await ask(fleet.gateway, COMPLETION, body)
    assert cold.error == ""
    assert _attempts(fleet, cold) == ["prefill-0", "decode-0"]
    assert cold.usage["prompt_tokens"] == 400
    assert cold.usage["prompt_tokens_details"]["cached_tokens"] == 400 // BLOCK * BLOCK
    until(lambda: _held(fleet) >= before + 400 // BLOCK, REPORT_SECONDS, "reported")
    warm = await ask(fleet.gateway, COMPLETION, body)
    assert _attempts(fleet, warm) == ["decode-0"]
    assert (warm.text, warm.finish, warm.usage["completion_tokens"]) == (cold.text, cold.finish, 24)


async def test_b16_a_threshold_of_the_request_is_tried_at_the_engine(fleet: Up) -> None:
    """Its own share of what is there decides, and nobody but vLLM counts what a connector holds."""
    messages = [{"role": "user", "content": "Say at length what is in each of the boxes. " * 20}]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 8, "stream": True}
    before = _held(fleet)
    first = await ask(fleet.gateway, CHAT, body | {"cache_hit_threshold": 0.9})
    assert (first.error, first.finish) == ("", "length")
    assert _attempts(fleet, first)[-2:] == ["prefill-0", "decode-0"]
    until(lambda: _held(fleet) >= before + first.usage["prompt_tokens"] // BLOCK, REPORT_SECONDS, "reported")
    again = await ask(fleet.gateway, CHAT, body | {"cache_hit_threshold": 0.9})
    assert (_attempts(fleet, again), again.text) == (["decode-0"], first.text)
    small = await ask(
        fleet.gateway, CHAT, body | {"cache_hit_threshold": 0, "messages": [{"role": "user", "content": "Hi"}]}
    )
    assert (small.error, _attempts(fleet, small)) == ("", ["decode-0"])


async def test_b18_without_prefill_workers_decode_serves_or_says_so(fleet: Up) -> None:
    (prompt,) = prompts(33, count=1, length=400)
    epoch = _epoch(fleet)
    fleet.engine("prefill-0").kill()
    said = await ask(fleet.gateway, COMPLETION, {"model": "tiny", "prompt": prompt, "max_tokens": 8})
    assert said.error[:3] in {"502", "503"}
    held = await ask(
        fleet.gateway, COMPLETION, {"model": "tiny", "prompt": prompt[:20], "max_tokens": 8, "cache_hit_threshold": 0}
    )
    assert held.error == ""
    until(lambda: _epoch(fleet) not in {epoch, None}, READY_SECONDS, "started again")


def _held(fleet: Up) -> int:
    """Blocks that the control plane knows the Decode worker to hold."""
    return sum(worker["heldBlocks"] for worker in fleet.workers() if worker["name"] == "decode-0")


def _attempts(fleet: Up, said: Said) -> list[str]:
    return [attempt["worker"] for attempt in fleet.decision(said.decision)["attempts"]]


def _epoch(fleet: Up) -> str | None:
    """Of the Prefill worker's engine."""
    return next((each["epoch"] for each in fleet.workers() if each["name"] == "prefill-0"), None)
