"""Archives whose bytes follow from their content and one time, and the checksums of a folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Final

CHECKSUMS: Final = "SHA256SUMS"
_CHUNK: Final = 1 << 20


def pack(folder: Path, archive: Path, epoch: int) -> None:
    """Write what is in ``folder`` as a tar file: names in order, owned by root, of the time ``epoch``."""
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            if entry.isfile():
                with path.open("rb") as content:
                    tar.addfile(_plain(entry, epoch), content)
            else:
                tar.addfile(_plain(entry, epoch))


def repack(archive: Path, epoch: int) -> None:
    """Write a .tgz anew in place, with the same files in their order and ``epoch`` in place of the times in it."""
    packed = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in old:
            tar.addfile(_plain(entry, epoch), old.extractfile(entry))
    archive.write_bytes(packed.getvalue())


def write_checksums(folder: Path) -> Path:
    """SHA256SUMS of all other files of a folder, as ``sha256sum --check`` reads it."""
    sums = folder / CHECKSUMS
    files = sorted(path for path in folder.iterdir() if path.is_file() and path != sums)
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    return sums


def sha256(path: Path) -> str:
    """A file's digest in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _plain(entry: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    entry.pax_headers = {}
    return entry
