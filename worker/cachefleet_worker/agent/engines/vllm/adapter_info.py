"""Which adapters (LoRA) vLLM is busy with, and how many fit on its device at once, from its ``/metrics``: pure."""

from __future__ import annotations

import re
from typing import Final

from cachefleet_worker.agent.engines.engine_poll import UNUSED, AdapterUse

_NAME: Final = "vllm:lora_requests_info"
_SAMPLE: Final = re.compile(rf"^{_NAME}\{{(.*)\}}\s+(\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BUSY: Final = ("running_lora_adapters", "waiting_lora_adapters")


def read_adapter_use(text: str) -> AdapterUse:
    """From an exposition: each set of names is a sample of its own there, whose value is when it was last true."""
    if _NAME not in text:
        return UNUSED
    samples = ((_when(match[2]), dict(_LABEL.findall(match[1]))) for match in _SAMPLE.finditer(text))
    _, last = max(samples, key=lambda sample: sample[0], default=(0.0, {}))
    names = (name for label in _BUSY for name in last.get(label, "").split(",") if name)
    slots = last.get("max_lora", "")
    return AdapterUse(int(slots) if slots.isascii() and slots.isdigit() else 0, tuple(dict.fromkeys(names)))


def _when(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
