"""The metric of adapters: the newest sample holds."""

from __future__ import annotations

from cachefleet_worker.agent.engines.engine_poll import UNUSED, AdapterUse
from cachefleet_worker.agent.engines.vllm.adapter_info import read_adapter_use
from cachefleet_worker.agent.engines.vllm.metrics_text import read_scrape


def sample(running: str, waiting: str, at: str, slots: str = "4") -> str:
    labels = f'max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at}\n"


def test_the_newest_sample_tells() -> None:
    page = sample("sql,french", "french,legal", "1.7324e9") + sample("", "", "1.7323e9") + sample("sql", "", "nonsense")
    assert read_adapter_use(page) == AdapterUse(4, ("sql", "french", "legal"))
    assert read_scrape(page).adapters == AdapterUse(4, ("sql", "french", "legal"))


def test_an_engine_without_adapters_or_with_odd_numbers_tells_nothing() -> None:
    assert read_adapter_use("vllm:num_requests_running{} 1") == UNUSED
    assert read_adapter_use("# HELP vllm:lora_requests_info Running stats on lora requests.") == UNUSED
    assert read_adapter_use(sample("sql", "", "1", slots="many")) == AdapterUse(0, ("sql",))
