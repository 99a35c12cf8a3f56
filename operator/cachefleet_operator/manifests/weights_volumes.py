"""Volumes of a worker pod made of images with weights, one for each image, and their mounts in the engine (pure).

Kubernetes pulls them as it pulls the images of containers: with the pod's pull secrets, and once for a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachefleet_core.pool.adapter_options import MODEL_FOLDER
from cachefleet_core.pool.weights_image import WeightsImage
from cachefleet_core.pool.worker_spec import ModelSpec
from cachefleet_operator.manifests.container import Manifest, read_only

_VOLUME: Final = "weights-"


def weights_volumes(model: ModelSpec) -> list[Manifest]:
    """A volume for each image that the model and its adapters name."""
    references = dict.fromkeys(image.reference for image, _ in _mounted(model))
    return [
        # A tag is not asked for anew on a node that has it: what pods of one node load stays the same.
        {"name": _name(reference), "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        for reference in references
    ]


def weights_mounts(model: ModelSpec) -> list[Manifest]:
    """Where the engine's container has them."""
    mounts = {folder: image for image, folder in _mounted(model)}
    return [
        read_only(_name(image.reference), folder) | ({"subPath": image.sub_path} if image.sub_path else {})
        for folder, image in mounts.items()
    ]


def image_volumes(template: Mapping[str, Any]) -> frozenset[str]:
    """Names of the volumes of a pod template that are made of images."""
    volumes = (template.get("spec") or {}).get("volumes") or ()
    return frozenset(str(volume["name"]) for volume in volumes if volume.get("image"))


def _mounted(model: ModelSpec) -> Iterator[tuple[WeightsImage, str]]:
    """Each image with the folder at which it is mounted, the same one twice where two names have it."""
    if model.image:
        yield model.image, MODEL_FOLDER
    for adapter in model.adapters:
        if adapter.image:
            yield adapter.image, adapter.image.adapter_folder


def _name(reference: str) -> str:
    return _VOLUME + hashlib.sha256(reference.encode()).hexdigest()[:16]
