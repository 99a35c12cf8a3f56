"""Weights in an OCI image, which Kubernetes mounts as a volume: how a source names one, what follows from that. Pure.

The image has the files as they would be in a folder. Named by its digest it is the same on every node, so the digest is
the revision in the index contract; a tag may name another image on another node, as a branch of a hub may.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final, Self

from cachefleet_core.pool.adapter_options import ADAPTERS_FOLDER
from cachefleet_core.pool.section import Rule

SCHEME: Final = "oci://"

_NAME: Final = "[a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?"
_IPV6: Final = r"\[[0-9a-fA-F:]+\]"
_HOST: Final = f"({_NAME}|{_IPV6})(:[0-9]{{1,5}})?"
_PART: Final = "[a-z0-9]+([._-]+[a-z0-9]+)*"
_TAG: Final = "[A-Za-z0-9_][-._A-Za-z0-9]{0,127}"
_DIGEST: Final = "sha256:[0-9a-f]{64}"
_IMAGE: Final = re.compile(rf"{SCHEME}(?P<name>{_HOST}(/{_PART})+)(:(?P<tag>{_TAG}))?(@(?P<digest>{_DIGEST}))?")
_WHOLE: Final = rf"^{SCHEME}{_HOST}(/{_PART})+(:{_TAG}|(:{_TAG})?@{_DIGEST})$"
_SCHEME: Final = "(?i)^oci:"
"""In any spelling, so that a misspelt one is not taken for something else. RE2 and Python read both patterns alike."""


@dataclass(frozen=True, slots=True)
class WeightsImage:
    """An image, and the folder in it that is mounted ("" for all of it)."""

    name: str
    """Registry and repository."""
    tag: str
    digest: str
    """``sha256:...``, "" where a tag alone names the image."""
    sub_path: str

    @classmethod
    def of(cls, source: str, sub_path: str = "") -> Self | None:
        """The image that a source names; None for a source of another kind, or one that breaks the rules."""
        found = _IMAGE.fullmatch(source)
        return cls(found["name"], found["tag"] or "", found["digest"] or "", sub_path) if found else None

    @property
    def reference(self) -> str:
        """As a container runtime is asked for it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def weights(self) -> str:
        """Name of the weights in the index contract, the same for a digest with a tag and without."""
        return f"{SCHEME}{self.name}" + (f"#{self.sub_path}" if self.sub_path else "")

    @property
    def revision(self) -> str:
        """Revision of the weights in the index contract."""
        return self.digest or self.tag

    @property
    def adapter_folder(self) -> str:
        """Where an adapter of this image is mounted: another revision is in another folder, so its blocks have other
        keys.
        """
        text = f"{self.weights}@{self.revision}"
        return f"{ADAPTERS_FOLDER}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def image_rules() -> tuple[Rule, ...]:
    """Rules of a section with source, revision and subPath."""
    return (
        Rule(
            field="source",
            cel=f"!self.source.matches('{_SCHEME}') || self.source.matches(r'{_WHOLE}')",
            message="must name an image as oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            holds=lambda section: not _is_image(section) or re.search(_WHOLE, section.source) is not None,
        ),
        Rule(
            field="revision",
            cel=f"self.revision == '' || !self.source.matches('{_SCHEME}')",
            message="must be empty where source is an image: name its tag or digest there",
            holds=lambda section: not (section.revision and _is_image(section)),
        ),
        Rule(
            field="subPath",
            cel=f"self.subPath == '' || self.source.matches('{_SCHEME}')",
            message="must be empty where source is no image (oci://...): name the folder there",
            holds=lambda section: not section.sub_path or _is_image(section),
        ),
    )


def _is_image(section: Any) -> bool:
    return re.search(_SCHEME, section.source) is not None
