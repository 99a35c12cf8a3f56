"""A pool's chat template, read from its ConfigMap (pure)."""

from __future__ import annotations

import hashlib

from cachefleet_core.pool.worker_spec import KeyRef
from cachefleet_runtime.kubernetes import Object


class ChatTemplateError(Exception):
    """The ConfigMap or key of a pool's chat template does not exist."""


def template_digest(config_map: Object | None, ref: KeyRef) -> str:
    """Digest of the chat template under a key of a ConfigMap. ChatTemplateError where it is not there."""
    text = ((config_map or {}).get("data") or {}).get(ref.key)
    if text is None:
        what = f"ConfigMap {ref.name}" + (f" has no key {ref.key}" if config_map else " is not there")
        raise ChatTemplateError(f"spec.model.chatTemplate: {what}")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
