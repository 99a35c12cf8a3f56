"""The product's image as an OCI archive that is the same whenever it is built from the same commit and base."""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e.cluster.binaries import SYFT, ensured
from release.files import pack

DOCKERFILE: Final = "images/cachefleet/Dockerfile"
PLATFORMS: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Processors as Rust and Linux name them, and as container images do."""
_LABEL: Final = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """What an image is built of: a clone, its version, commit and time; the base image (the Dockerfile's where it is
    empty); further options of ``buildah build``.
    """

    root: Path
    version: str
    commit: str
    epoch: int
    processor: str
    base: str = ""
    options: Sequence[str] = ()

    @property
    def tag(self) -> str:
        return f"localhost/cachefleet:{self.version}"

    @property
    def name(self) -> str:
        return f"cachefleet-{self.version}-linux-{PLATFORMS[self.processor]}"


def write_image(build: ImageBuild, folder: Path) -> tuple[str, Path]:
    """Build it, and write its layout as an archive; the image's digest, and the archive."""
    base = [f"--build-arg=BASE={build.base}"] if build.base else []
    labels = {"title": "cachefleet", "version": build.version, "revision": build.commit, "licenses": "Apache-2.0"}
    named = [f"--label={_LABEL}.{name}={value}" for name, value in labels.items()]
    platform = [f"--platform=linux/{PLATFORMS[build.processor]}", f"--timestamp={build.epoch}"]
    options = [*platform, *base, *named, *build.options]
    _run("buildah", "build", "--file", DOCKERFILE, "--tag", build.tag, *options, ".", cwd=build.root)
    archive = folder / f"{build.name}.oci.tar"
    with tempfile.TemporaryDirectory(dir=folder) as layout:
        _run("buildah", "push", "--quiet", build.tag, f"oci:{layout}:{build.version}")
        pack(Path(layout), archive, build.epoch)
        return image_digest(Path(layout)), archive


def image_digest(layout: Path) -> str:
    """The digest by which a registry will know the only image of an OCI layout."""
    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    return str(manifest["digest"])


def write_sbom(archive: Path, digest: str, epoch: int, folder: Path) -> Path:
    """What is in the image, by syft, as CycloneDX: packages of Debian and Python. Crates: in the native wheel."""
    syft, name = ensured([SYFT])[SYFT.name], archive.name.removesuffix(".oci.tar")
    options = [f"--source-name={name}", "--select-catalogers=-file", "--output=cyclonedx-json", "--quiet"]
    told = _run(str(syft), "scan", f"oci-archive:{archive}", *options)
    sbom = folder / f"{name}.cdx.json"
    sbom.write_text(json.dumps(settled(json.loads(told), digest, epoch), indent=1, sort_keys=True) + "\n")
    return sbom


def settled(document: dict[str, Any], digest: str, epoch: int) -> dict[str, Any]:
    """An SBOM without what is drawn or the clock's: its number follows from the image, its time from the commit."""
    metadata = document["metadata"] | {"timestamp": datetime.fromtimestamp(epoch, UTC).isoformat()}
    number = uuid.uuid5(uuid.NAMESPACE_OID, digest)
    return document | {"serialNumber": f"urn:uuid:{number}", "metadata": metadata}


def _run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd).stdout
