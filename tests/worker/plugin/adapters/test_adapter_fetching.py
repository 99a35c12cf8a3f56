"""Loading of adapters while an engine runs: what vLLM is given to load, and when the plugin has a part in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cachefleet_core.pool.adapter_options import RUNTIME_ADAPTERS
from cachefleet_worker import adapter_weights
from cachefleet_worker.plugin.adapters import adapter_fetching
from cachefleet_worker.plugin.adapters.adapter_fetching import FEATURE
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import process


class Ask(BaseModel):
    lora_name: str
    lora_path: str


class Models:
    """As vLLM's, as far as the hook looks."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    async def load_lora_adapter(self, request: Ask, base_model_name: str | None = None) -> str:
        self.loaded.append(request.lora_path)
        return "Success"


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(source: str, revision: str | None = None) -> str:
        if revision == "gone":
            raise OSError("no such revision")
        return f"/cache/{source}/snapshots/{revision or 'main'}"

    monkeypatch.setattr(adapter_weights, "import_module", lambda _: SimpleNamespace(snapshot_download=download))
    monkeypatch.setenv(RUNTIME_ADAPTERS, "1")


def installed(**config: Any) -> tuple[Process, Models]:
    own, models = process(PluginSettings(**config)), Models()
    vllm_config = SimpleNamespace(lora_config=SimpleNamespace(max_loras=4))
    adapter_fetching.install(SimpleNamespace(vllm_config=vllm_config, openai_serving_models=models), own)
    return own, models


@pytest.mark.parametrize(
    ("asked", "loaded"),
    [
        ("/weights/sql", "/weights/sql"),
        ("acme/sql", "/cache/acme/sql/snapshots/main"),
        ("acme/sql@5f3c", "/cache/acme/sql/snapshots/5f3c"),
        ("./sql@1", "./sql@1"),
    ],
)
async def test_a_hub_id_is_fetched_before_the_engine_reads_it(asked: str, loaded: str) -> None:
    own, models = installed()
    assert await models.load_lora_adapter(Ask(lora_name="sql", lora_path=asked)) == "Success"
    assert (models.loaded, own.capabilities.mode(FEATURE)) == ([loaded], "on")


async def test_what_cannot_be_fetched_is_refused_with_the_hubs_words_and_the_engine_is_not_asked() -> None:
    own, models = installed()
    with pytest.raises(HTTPException, match="acme/sql at gone cannot be fetched: no such revision"):
        await models.load_lora_adapter(Ask(lora_name="sql", lora_path="acme/sql@gone"))
    assert not models.loaded
    assert await models.load_lora_adapter(Ask(lora_name="sql", lora_path="acme/sql")) == "Success"
    assert own.capabilities.mode(FEATURE) == "on"


@pytest.mark.parametrize("value", ["", "0", "no"])
async def test_where_vllm_loads_nothing_while_it_runs_that_is_told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(RUNTIME_ADAPTERS, value)
    own, models = installed()
    assert own.capabilities.mode(FEATURE) == "off"
    await models.load_lora_adapter(Ask(lora_name="sql", lora_path="acme/sql"))
    assert models.loaded == ["acme/sql"]


def test_it_can_be_switched_off_and_needs_adapters() -> None:
    own, _ = installed(plugin_off=("adapter_loading",))
    assert own.capabilities.mode(FEATURE) == "off"
    plain = process(PluginSettings())
    adapter_fetching.install(SimpleNamespace(vllm_config=SimpleNamespace(lora_config=None)), plain)
    assert FEATURE not in {each.feature for each in plain.capabilities.document()}
