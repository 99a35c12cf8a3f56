"""A Secret mounted as a volume, replaced as the kubelet does it, and certificates to put into it."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from cachefleet_operator.certificates.certificate import Pair
from cachefleet_operator.certificates.issuing import new_authority, new_serving
from cachefleet_operator.certificates.rotation import Lifetimes

LIFETIMES = Lifetimes(dt.timedelta(days=30), dt.timedelta(days=5), dt.timedelta(hours=1))


class SecretVolume:
    """Files as links to ``..data/NAME``, and ``..data`` as a link to a folder; a new content is a new folder.

    (kubernetes/pkg/volume/util/atomic_writer.go)
    """

    def __init__(self, folder: Path, data: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._turns = itertools.count()
        folder.mkdir(parents=True)
        self.put(data)

    def put(self, data: Mapping[str, bytes]) -> None:
        """Replace all files at once; the old folder is removed."""
        made = self.folder / f"..2026_{next(self._turns)}"
        made.mkdir()
        for name, content in data.items():
            (made / name).write_bytes(content)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        link, swap = self.folder / "..data", self.folder / "..data_tmp"
        old = link.resolve() if link.is_symlink() else None
        swap.symlink_to(made.name)
        swap.rename(link)
        if old is not None:
            shutil.rmtree(old)


def authority() -> Pair:
    return new_authority(dt.datetime.now(dt.UTC), LIFETIMES)


def issued(signing: Pair, *names: str, trusted: bytes = b"") -> dict[str, bytes]:
    """The data of a server's Secret."""
    pair = new_serving(signing, names, dt.datetime.now(dt.UTC), LIFETIMES)
    return {CERTIFICATE: pair.pem, PRIVATE_KEY: pair.key_pem, AUTHORITIES: trusted or signing.pem}
