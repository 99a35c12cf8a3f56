"""Where weights come from: URIs of other projects, as sources and volumes of a pool."""

from __future__ import annotations

from typing import Any, Final

from cachefleet_core.pool.weights_image import SCHEME
from cachefleet_local.foreign_manifests.draft import PoolDraft, refused, text

FOLDER: Final = "/mnt/weights"
"""Where a claim with weights is mounted in the engine's container."""
_VOLUME: Final = "weights"


def read_uri(draft: PoolDraft, source: str, value: Any) -> None:
    """Take the URI of a model's weights: of a hub, a claim, an image, or a path."""
    scheme, separator, rest = text(source, value).partition("://")
    if not separator or scheme == "hf":
        draft.put("model.source", rest or value)
    elif scheme == "oci":
        draft.put(
            "model.source", f"{SCHEME}{rest}" if "@" in rest or ":" in rest.rpartition("/")[2] else f"{value}:latest"
        )
    elif scheme == "pvc":
        _claim(draft, source, rest)
    else:
        raise refused(
            source, value, "must begin with hf://, pvc:// or oci://: fetch the weights to a volume or an image"
        )
    draft.became(source, "spec.model.source")


def _claim(draft: PoolDraft, source: str, rest: str) -> None:
    claim, _, path = rest.partition("/")
    if not claim:
        raise refused(source, rest, "must name a claim, as pvc://CLAIM/PATH")
    draft.put("model.source", f"{FOLDER}/{path}".rstrip("/"))
    draft.append(
        "podTemplate.spec.volumes",
        [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
    )
    container = draft.container()
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    container["volumeMounts"] = [*container.get("volumeMounts", []), mount]
