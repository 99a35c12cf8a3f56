"""A certificate authority of its own for each test cluster, living as long as the cluster does."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=7)
_NAME = "ca"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into ``folder``; ``certificate`` is what clients trust."""

    def __init__(self, folder: Path, now: dt.datetime, *, trusted: Path, key: ec.EllipticCurvePrivateKey) -> None:
        self._folder = folder
        self._now = now
        self._key = key
        self._name = _subject("cachefleet-test-ca", ())
        self.certificate = trusted

    @classmethod
    def made(cls, folder: Path, now: dt.datetime) -> Self:
        """A new one, kept in ``folder``."""
        made = cls(folder, now, trusted=folder / f"{_NAME}.crt", key=ec.generate_private_key(ec.SECP256R1()))
        builder = made._builder(made._name, made._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        signed = builder.sign(made._key, hashes.SHA256())
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made._write_key(_NAME, made._key)
        return made

    @classmethod
    def found(cls, kept: Path, folder: Path, now: dt.datetime) -> Self:
        """The one that is kept in ``kept``, signing into another folder."""
        key = serialization.load_pem_private_key((kept / f"{_NAME}.key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(folder, now, trusted=kept / f"{_NAME}.crt", key=key)

    def server(self, name: str, hosts: tuple[str, ...]) -> Pair:
        """For a server reached as any of ``hosts`` (names or addresses)."""
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(name, (), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, user: str, groups: tuple[str, ...] = ()) -> Pair:
        """For a user of the API server, member of ``groups``."""
        return self._issue(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def key(self, name: str) -> Pair:
        """A bare key pair (public key, private key) for service-account tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = self._folder / f"{name}.pub"
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return Pair(public, self._write_key(name, key))

    def _issue(
        self,
        name: str,
        groups: tuple[str, ...],
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_subject(name, groups), key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        stem = name.replace(":", "-")
        certificate = self._folder / f"{stem}.crt"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return Pair(certificate, self._write_key(stem, key))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - dt.timedelta(minutes=5))
            .not_valid_after(self._now + _VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_key_usage(authority=key is self._key), critical=True)
        )

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> Path:
        path = self._folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return path


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def kubeconfig(server: str, authority: Path, user: str, pair: Pair) -> dict[str, Any]:
    """A kubeconfig for a user; over plain HTTP (to a proxy) the certificates are not used."""
    cluster: dict[str, Any] = {"server": server}
    if server.startswith("https:"):
        cluster["certificate-authority"] = str(authority)
    credentials = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cachefleet", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "cachefleet", "context": {"cluster": "cachefleet", "user": user}}],
        "current-context": "cachefleet",
    }
