"""TLS contexts that follow their files, so that certificates are replaced without a restart.

Files are looked at where they are needed, at a handshake or before a connection: nothing polls or watches. A content
that cannot be used changes nothing; what was in force stays so until the files are sound.

Nothing but the standard library and core: vLLM's process uses this, too.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from cachefleet_core.tls_names import CERTIFICATE, PRIVATE_KEY

logger = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int], ...]

MINIMUM_VERSION: Final = ssl.TLSVersion.TLSv1_3
READINGS: Final = 8
"""How often files that are replaced while they are read are read again."""


class Followed(Generic[T]):
    """The result of ``load`` for some files, renewed when they change. OSError where the first load fails.

    OpenSSL's errors (``ssl.SSLError``) are OSErrors.
    """

    def __init__(self, files: Sequence[Path], load: Callable[[], T]) -> None:
        self._files = files
        self._load = load
        self._problem = ""
        self._stamp, self._value = settled(files, load)

    def current(self) -> T:
        """The newest result; the previous one while the files cannot be loaded."""
        try:
            # The stamp is taken before the content: files that change in between are read once more.
            if (stamp := _stamp(self._files)) != self._stamp:
                self._value = self._load()
                self._stamp = stamp
                self._problem = ""
                logger.info("read again: %s", self._files[0])
        except OSError as error:  # also half of a change; looked at again the next time
            self._reject(str(error))
        return self._value

    def _reject(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("the certificates read before stay in force: %s: %s", self._files[0], problem)
        self._problem = problem


def settled(files: Sequence[Path], load: Callable[[], T]) -> tuple[Stamp, T]:
    """What ``load`` makes of some files, and how they were before. OSError.

    Where it fails and they were replaced meanwhile, all at once as a Secret's volume is, it is tried again.
    """
    for _ in range(READINGS):
        stamp = _stamp(files)
        try:
            return stamp, load()
        except OSError:
            if _stamp(files) == stamp:
                raise
    return _stamp(files), load()


def _stamp(files: Sequence[Path]) -> Stamp:
    found = [file.stat() for file in files]
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)


def server_context(folder: Path) -> ssl.SSLContext:
    """A server's context that presents the pair in a folder, as it is at each handshake. OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    follow(context, folder)
    return context


def follow(context: ssl.SSLContext, folder: Path) -> None:
    """Have a server's context present the pair in a folder, as it is at each handshake. OSError.

    A handshake takes its pair from a context of its own, and that is made anew: to load another pair into a context in
    use would leave it without a key where the files do not fit each other.
    """
    certificate, key = folder / CERTIFICATE, folder / PRIVATE_KEY
    newest = Followed((certificate, key), lambda: _pair(certificate, key))

    def present(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = newest.current()

    context.minimum_version = MINIMUM_VERSION
    context.sni_callback = present  # called for clients that name no server, too


class TrustedAuthorities:
    """The authorities that a client trusts: those in a file, or the machine's where there is none. OSError."""

    def __init__(self, file: Path | None) -> None:
        self._newest = None if file is None else Followed((file,), lambda: _trusting(file))

    def context(self) -> ssl.SSLContext | bool:
        """For a new connection, as aiohttp takes it."""
        return True if self._newest is None else self._newest.current()[1]

    def certificates(self) -> str | None:
        """PEM, for a new connection; None where they are the machine's."""
        return None if self._newest is None else self._newest.current()[0]


def client_context(authorities: str) -> ssl.SSLContext:
    """A client's context that trusts these certificates (PEM) and no others. ssl.SSLError where there are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = MINIMUM_VERSION
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an authority below another may be all that is given
    context.load_verify_locations(cadata=authorities.encode("ascii", "ignore").decode() or "none")
    return context


def _trusting(file: Path) -> tuple[str, ssl.SSLContext]:
    certificates = file.read_text(errors="replace")
    return certificates, client_context(certificates)


def _pair(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM_VERSION
    context.load_cert_chain(certificate, key)
    return context
