"""A certificate as far as decisions about it need it, and its pair with a private key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class CertificateError(ValueError):
    """A certificate or key that cannot be read."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whose key it is, who signed it, for which names, and when it is valid."""

    key: str
    """Identifier of its own key, in hex."""
    issuer: str
    """Identifier of the key that signed it."""
    begins: dt.datetime
    ends: dt.datetime
    names: frozenset[str] = frozenset()

    @property
    def life(self) -> dt.timedelta:
        """From its beginning to its end."""
        return self.ends - self.begins

    @classmethod
    def read(cls, pem: bytes) -> Self:
        """The first certificate of a PEM file. CertificateError."""
        try:
            found = x509.load_pem_x509_certificate(pem)
            own = found.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
            issuer = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        except (ValueError, x509.ExtensionNotFound) as error:
            raise CertificateError(f"no certificate with key identifiers: {error}") from error
        begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
        return cls(own.hex(), (issuer or b"").hex(), begins, ends, frozenset(_names(found)))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its PEM text and its private key's; ``key_pem`` is empty where the key is not kept."""

    certificate: Certificate
    pem: bytes
    key_pem: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, pem: bytes, key_pem: bytes) -> Self:
        """A pair from PEM. CertificateError where either cannot be read, or they do not belong together."""
        certificate = Certificate.read(pem)
        if key_id(private_key(key_pem).public_key()).hex() != certificate.key:
            raise CertificateError("the key is not the certificate's")
        return cls(certificate, pem, key_pem)


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """An elliptic-curve key from PEM. CertificateError."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError("no private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("not a key on an elliptic curve")
    return key


def key_id(key: ec.EllipticCurvePublicKey) -> bytes:
    """The identifier that certificates name a key by (RFC 5280, 4.2.1.2, first method)."""
    return x509.SubjectKeyIdentifier.from_public_key(key).digest


def _names(found: x509.Certificate) -> Iterable[str]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return (*names.get_values_for_type(x509.DNSName), *addresses)
