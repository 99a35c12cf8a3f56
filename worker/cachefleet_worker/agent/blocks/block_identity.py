"""What names an event's blocks besides their tokens: adapter, salt, media. Pure."""

from __future__ import annotations

from typing import Final

from cachefleet_core.block_identity.adapters import FIRST_REVISION, adapter_namespace
from cachefleet_core.block_identity.media import Medium
from cachefleet_worker.agent.blocks.block_events import BlockStored

BASE_MODEL: Final = ""
NO_MEDIA: Final[tuple[Medium, ...]] = ()


def adapter_of(event: BlockStored) -> str | None:
    """The adapter's name in block-key namespaces; None where its revision or name is not reported."""
    if event.lora_id is None and not event.lora_name:
        return BASE_MODEL
    if not event.lora_name or event.lora_id is None or event.lora_id < FIRST_REVISION:
        return None
    return adapter_namespace(event.lora_name, event.lora_id)


def salt_of(event: BlockStored) -> str:
    """The cache salt of a chain that starts a prompt; "" for none."""
    texts = [extra for extra in event.extras(0) if isinstance(extra, str)]
    return texts[0] if len(texts) == 1 else ""


def media_of(event: BlockStored, depth: int) -> list[tuple[Medium, ...]]:
    """The media of each leading block that adapter, media and (a prompt's first block) salt identify.

    ``depth`` is the position, in blocks, of the event's first one.
    """
    if not event.extra_keys:
        return [NO_MEDIA] * len(event.block_hashes)
    out: list[tuple[Medium, ...]] = []
    for index in range(len(event.block_hashes)):
        if index >= len(event.extra_keys) or not event.extra_keys[index]:
            out.append(NO_MEDIA)
            continue
        extras = event.extras(index)
        media = tuple(extra for extra in extras if isinstance(extra, tuple))
        texts = 1 if depth + index == 0 and any(isinstance(extra, str) for extra in extras) else 0
        if len(media) + texts != len(extras):
            break
        out.append(media)
    return out
