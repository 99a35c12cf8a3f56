"""The authorities by which the operator knows the control plane."""

from __future__ import annotations

import ssl

from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_operator.certificates.certificate import CertificateError
from cachefleet_runtime.tls import client_context


class Trust:
    """What the operator trusts as a client: the machine's authorities until ``learn`` was called."""

    def __init__(self) -> None:
        self._bundle = b""
        self._context: ssl.SSLContext | bool = True

    def learn(self, bundle: bytes) -> None:
        """Trust these from the next connection on. CertificateError where there are none."""
        if not bundle or bundle != self._bundle:
            try:
                self._context = client_context(bundle.decode(errors="replace"))
            except ssl.SSLError as error:
                raise CertificateError(f"{AUTHORITIES} has no certificate: {error}") from error
            self._bundle = bundle

    def context(self) -> ssl.SSLContext | bool:
        """As aiohttp takes it."""
        return self._context
