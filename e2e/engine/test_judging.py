"""Models that judge texts, on real vLLM through the gateway: classified, scored and ranked by load, and counted."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.engine.fleet import running_up, until
from e2e.engine.judging_models import LABELS, decoder, encoder
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from tests.controlplane.gateway.harness import Front, front

pytestmark = pytest.mark.slow
"""Each has an engine of its own."""
POOLING: Final = VllmOptions(extra=("--runner=pooling",), max_model_len=256)
TEXTS: Final = ["good day", "a tree", "a house"]

Model = Callable[[Path, Path], Path]


@pytest.fixture(scope="module", params=[decoder, encoder])
def judging(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Model, VllmServer]]:
    """A running engine of a model, with what made that."""
    folder = tmp_path_factory.mktemp("judging")
    with running_vllm(POOLING, request.param(folder / "model", tiny_model), folder / "vllm.log") as server:
        yield request.param, server


POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: judge}}
spec:
  model: {{name: judge, source: {source}, weightsMiB: 2}}
  engine: {{maxModelLen: 256, dtype: float32}}
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 256}}
  prefixCache: {{budgetMiB: 2}}
"""


def test_a_pool_of_an_encoder_serves_and_says_that_it_has_no_prefix_cache(tiny_model: Path, tmp_path: Path) -> None:
    pool_file = tmp_path / "pool.yaml"
    pool_file.write_text(POOL.format(source=encoder(tmp_path / "model", tiny_model)))
    with running_up(pool_file, tmp_path) as up:
        until(lambda: up.live(1), 60, "reports", up)
        body = json.dumps({"model": "judge", "query": "hello", "documents": TEXTS}).encode()
        asked_for = urllib.request.Request(f"{up.gateway}/v1/rerank", body, {"content-type": "application/json"})  # noqa: S310 - ours
        with urllib.request.urlopen(asked_for, timeout=300) as answer:  # noqa: S310
            assert len(json.load(answer)["results"]) == len(TEXTS)
        (worker,) = up.workers()
        assert [(one["field"], one["actual"]) for one in worker["configuration"]] == [
            ("enable_prefix_caching", "false")
        ]
        assert "NoPrefixCache" in {one["reason"] for one in up.admin("findings")}
        assert up.admin("capacity")[0]["words"].startswith("no prefix cache")


async def asked(gate: Front, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    status, _, data = await gate.post(path, {"model": POOLING.model, **body})
    return status, json.loads(data)


async def test_what_a_model_judges_is_answered_and_counted(judging: tuple[Model, VllmServer]) -> None:
    made, server = judging
    async with front([server], model=POOLING.model, key=POOLING.api_key) as gate:
        status, told = await asked(gate, "/classify", input=TEXTS)
        assert (status, [one["index"] for one in told["data"]]) == (200, [0, 1, 2])
        labels = set(LABELS) if made is decoder else {"relevance"}
        assert {one["label"] for one in told["data"]} <= labels
        assert (await asked(gate, "/pooling", input="hello"))[0] == 200
        assert (await asked(gate, "/classify", input=[]))[0] == 400
        scored = await asked(gate, "/v1/score", text_1="hello", text_2=TEXTS)
        ranked = await asked(gate, "/v1/rerank", query="hello", documents=TEXTS, top_n=2)
        if made is decoder:  # of several labels it scores no pair
            assert (scored[0], ranked[0]) == (404, 404)
        else:
            scores = [one["score"] for one in scored[1]["data"]]
            best = sorted(range(3), key=lambda at: -scores[at])[:2]
            assert [one["index"] for one in ranked[1]["results"]] == best
        assert (await asked(gate, "/v1/embeddings", input="hello"))[0] == 404
        counted = [record for record in gate.records if record.status == 200]
        assert all(record.knowledge == "load" for record in counted)
