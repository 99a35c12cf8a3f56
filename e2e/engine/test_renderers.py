"""A dedicated renderer: ``vllm launch render`` with the plugin, which has no engine, in front of a worker."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_core.tenancy import FleetKey, fleet_index_key
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.long_answers import CHAT, ask
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: far}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  engine: {maxModelLen: 1900, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 506}
  prefixCache: {budgetMiB: 2}
"""
BODY: Final[dict[str, Any]] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me of the sea, and of the mountains behind it. " * 20}],
    "max_tokens": 4,
}


@pytest.fixture(scope="module")
def renderer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, FleetKey]]:
    """Its keys are those of a fleet whose key is made here."""
    folder = tmp_path_factory.mktemp("renderer")
    key = FleetKey.generate()
    index_key = folder / "fleet-index.key"
    index_key.write_text(base64.urlsafe_b64encode(fleet_index_key(key.index_key, "default", "tiny")).decode())
    options = VllmOptions(
        plugin=True,
        cli="launch render",
        api_key=key.worker_key("default/far"),
        max_model_len=1900,
        environment=(("CACHEFLEET_INDEX_KEY_FILE", str(index_key)),),
    )
    with running_vllm(options, tiny_model, folder / "vllm.log") as server:
        yield server, key


@pytest.fixture(scope="module")
def fleet(renderer: tuple[VllmServer, FleetKey], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server, key = renderer
    folder = tmp_path_factory.mktemp("rendered")
    pool = folder / "pool.yaml"
    pool.write_text(POOL)
    secrets = folder / "data" / "secrets"
    secrets.mkdir(parents=True, mode=0o700)
    (secrets / "fleet.key").write_text(key.format())
    (secrets / "fleet.key").chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEFLEET_RENDERER_URLS", server.url)
        with running_up(pool, folder) as up:
            until(lambda: up.live(1), READY_SECONDS, "whole")
            yield up


async def test_its_keys_are_those_of_the_worker_s_blocks(fleet: Up, renderer: tuple[VllmServer, FleetKey]) -> None:
    """What was computed for the first request is predicted, and found, for the second; no worker rendered."""
    first = await ask(fleet.gateway, CHAT, BODY)
    longer = BODY | {"messages": [*BODY["messages"], {"role": "user", "content": "And of the wind?"}]}
    assert _decided(fleet, longer)["rendered_by"] == "keys"
    until(lambda: fleet.workers()[0]["heldBlocks"] > 0, READY_SECONDS, "reported")
    second = await ask(fleet.gateway, CHAT, longer)
    assert (first.error, second.error) == ("", "")
    found = fleet.decision(second.decision)
    assert found["predictedTokens"] == found["cachedTokens"] > 0
    assert "/v1/fleet/keys" in renderer[0].log.read_text(errors="replace")
    engine_log = (fleet.data_dir / "logs" / "far-0.engine.log").read_text(errors="replace")
    assert "/v1/fleet/keys HTTP" not in engine_log
    assert "/render HTTP" not in engine_log


def _decided(fleet: Up, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    with urllib.request.urlopen(f"{fleet.gateway}/v1/route", data, timeout=60) as answer:  # noqa: S310 - ours
        return dict(json.load(answer))
