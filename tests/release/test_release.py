"""What ``make release`` says, and what it asks of an image and of the list of its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from release import __main__ as release
from release.image import ImageBuild, image_digest, settled
from release.version import ROOT, VersionError

DIGEST: str = "sha256:" + "ab" * 32


def test_what_is_signed_is_named_by_digest() -> None:
    said = "\n".join(release.steps("0.1.0", "c0ffee" * 6, {"cachefleet-0.1.0-linux-amd64.oci.tar": DIGEST}))
    assert f"cosign sign REGISTRY/cachefleet@{DIGEST}" in said
    assert f"git tag --sign v0.1.0 {'c0ffee' * 6}" in said
    assert "dist/cachefleet-0.1.0-linux-amd64.cdx.json" in said
    assert "NOT to be published" not in said


def test_images_of_several_processors_share_a_tag_and_none_takes_it_from_another() -> None:
    digests = {f"cachefleet-0.1.0-linux-{arch}.oci.tar": f"sha256:{arch}" for arch in ("amd64", "arm64")}
    left = release.steps("0.1.0", "c0ffee", digests)
    assert [line.split()[0] for line in left if line.endswith(":0.1.0")] == ["buildah"]
    [made] = [line for line in left if "manifest create" in line]
    assert made.endswith("@sha256:amd64 docker://REGISTRY/cachefleet@sha256:arm64")
    one = release.steps("0.1.0", "c0ffee", {"cachefleet-0.1.0-linux-amd64.oci.tar": DIGEST})
    assert [line.split()[0] for line in one if line.endswith(":0.1.0")] == ["skopeo"]


def test_native_code_is_uploaded_before_what_needs_it() -> None:
    uploads = [line for line in release.steps("0.1.0", "c0ffee", {}) if "twine" in line]
    assert ["native" in line for line in uploads] == [True, False]


def test_a_clone_with_changes_is_told() -> None:
    assert "NOT to be published" in release.steps("0.1.0", "c0ffee-dirty", {})[-1]


def test_the_page_on_releasing_has_each_step_that_is_left() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text()
    archives = [f"cachefleet-0.1.0-linux-{arch}.oci.tar" for arch in ("amd64", "arm64")]
    left = release.steps("0.1.0", "c0ffee", dict.fromkeys(archives, DIGEST))
    commands = {" ".join(line.split()[:2]) for line in left if line.startswith("  ") and not line.startswith("    ")}
    assert commands >= {"cosign sign", "helm push", "git tag"}
    assert [command for command in commands if command.replace("gpg --armor", "gpg --detach-sign") not in page] == []


def test_places_that_name_different_versions_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def differing() -> str:
        raise VersionError("pyproject.toml has 0.2.0, but README.md has 0.1.0")

    monkeypatch.setattr(release, "version", differing)
    assert release.main([]) == 1
    assert capsys.readouterr().err == "release: pyproject.toml has 0.2.0, but README.md has 0.1.0\n"


def test_an_image_is_named_by_its_version_and_platform() -> None:
    assert ImageBuild(ROOT, "0.1.0", "c0ffee", 1, "aarch64").name == "cachefleet-0.1.0-linux-arm64"


def test_the_digest_is_that_of_the_only_manifest(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [{"digest": DIGEST}]}))
    assert image_digest(tmp_path) == DIGEST


def test_a_list_of_parts_follows_from_the_image_and_the_commit() -> None:
    drawn = [
        {"serialNumber": f"urn:uuid:{n}", "metadata": {"timestamp": str(n), "tools": ["syft"]}, "components": [1]}
        for n in range(2)
    ]
    first, second = (settled(document, DIGEST, 1_700_000_000) for document in drawn)
    assert first == second
    assert first["metadata"] == {"timestamp": "2023-11-14T22:13:20+00:00", "tools": ["syft"]}
    assert first["components"] == [1]
    assert settled(drawn[0], "sha256:0", 1_700_000_000)["serialNumber"] != first["serialNumber"]
