"""``python -m release``: image, list of its parts, chart and checksums beside the wheels in ``dist/``.

``make release`` calls it after ``make wheels``. Nothing is published, signed or tagged here: what is left to a person
is printed.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster.binaries import HELM, UnavailableError, ensured
from release.files import CHECKSUMS, repack, sha256, write_checksums
from release.image import PLATFORMS, ImageBuild, write_image, write_sbom
from release.version import ROOT, VersionError, changes, version

DIST: Final = ROOT / "dist"
CHART: Final = ROOT / "charts" / "cachefleet"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what a release consists of; 1 where it cannot be made, with the reason."""
    options = _parser().parse_args(arguments)
    try:
        wanted = version()
        changes(wanted)
        print("\n".join(_made(options, wanted)))
    except (VersionError, UnavailableError) as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"release: {shlex.join(map(str, failed.cmd[:4]))} ... failed, see above", file=sys.stderr)
        return 1
    return 0


def _made(options: argparse.Namespace, wanted: str) -> list[str]:
    for old in (path for path in DIST.glob("*") if path.suffix != ".whl"):
        old.unlink()
    epoch = int(_git("log", "-1", "--format=%ct"))
    commit = _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain") else "")
    base, more = options.base, shlex.split(options.build_options)
    digests = {}
    for processor in options.processors.split():
        build = ImageBuild(ROOT, wanted, commit, epoch, processor, base, more)
        digest, archive = write_image(build, DIST)
        write_sbom(archive, digest, epoch, DIST)
        digests[archive.name] = digest
    write_chart(DIST, epoch)
    write_checksums(DIST)
    return [*_listed(), *steps(wanted, commit, digests)]


def write_chart(folder: Path, epoch: int) -> None:
    """Package the chart as helm does, without the time of packaging in it."""
    helm = ensured([HELM])[HELM.name]
    made = subprocess.run([helm, "package", CHART, "-d", folder], check=True, capture_output=True, text=True).stdout
    repack(Path(made.rpartition(": ")[2].strip()), epoch)


def steps(wanted: str, commit: str, digests: dict[str, str]) -> list[str]:
    """What a maintainer signs and publishes, as commands; docs/releasing.md explains them."""
    several = len(digests) > 1
    pushed = [
        line
        for archive, digest in digests.items()
        for line in (
            f"  skopeo copy --preserve-digests oci-archive:dist/{archive} docker://REGISTRY/cachefleet"
            + (f"@{digest}" if several else f":{wanted}"),
            f"  cosign sign REGISTRY/cachefleet@{digest}",
            f"  cosign attest --type cyclonedx --predicate dist/{archive.removesuffix('.oci.tar')}.cdx.json \\",
            f"    REGISTRY/cachefleet@{digest}",
        )
    ]
    dirty = ["", "NOT to be published: the clone has changes that are not committed."] if "dirty" in commit else []
    return [
        "",
        f"Left to a maintainer (docs/releasing.md), for {wanted} at {commit[:12]}:",
        f"  git tag --sign v{wanted} {commit}",
        f"  gpg --armor --detach-sign dist/{CHECKSUMS}",
        *pushed,
        *(_one_tag(wanted, list(digests.values())) if several else ()),
        f"  helm push dist/cachefleet-{wanted}.tgz oci://REGISTRY/charts",
        "  twine upload dist/cachefleet_native-*.whl",
        "  twine upload dist/cachefleet-*.whl",
        *dirty,
    ]


def _one_tag(wanted: str, digests: list[str]) -> list[str]:
    """Commands by which one tag names the images of several processors."""
    images = " ".join(f"docker://REGISTRY/cachefleet@{digest}" for digest in digests)
    return [
        f"  buildah manifest create cachefleet:{wanted} {images}",
        f"  buildah manifest push --all cachefleet:{wanted} docker://REGISTRY/cachefleet:{wanted}",
    ]


def _listed() -> list[str]:
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    return [f"{sha256(path)[:12]}  {path.stat().st_size / 1e6:8.1f} MB  dist/{path.name}" for path in files]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="", help="base image by digest; the Dockerfile's where it is empty")
    parser.add_argument("--build-options", default="", help="more options of buildah build")
    own = platform.machine()
    parser.add_argument("--processors", default=own, help=f"of images, some of {', '.join(PLATFORMS)} (default {own})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
