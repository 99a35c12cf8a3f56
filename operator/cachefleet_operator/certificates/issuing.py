"""New keys, and certificates signed with them: P-256 and SHA-256, with the extensions that strict clients ask for."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cachefleet_operator.certificates.certificate import Certificate, Pair, private_key
from cachefleet_operator.certificates.rotation import SKEW, Lifetimes, end_of


def new_authority(now: dt.datetime, lifetimes: Lifetimes) -> Pair:
    """An authority that signs itself, valid from now on."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"cachefleet {serial:x}"[:40])  # each has another name, by which verifiers look for issuers
    builder = _builder(name, name, key.public_key(), key.public_key(), serial)
    builder = builder.not_valid_before(now - SKEW).not_valid_after(now + lifetimes.authority)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _pair(builder.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256()), key)


def new_serving(authority: Pair, names: Iterable[str], now: dt.datetime, lifetimes: Lifetimes) -> Pair:
    """A server's certificate for ``names`` (DNS names or addresses), signed by ``authority``."""
    signing, key = private_key(authority.key_pem), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.pem).subject
    serial = x509.random_serial_number()
    builder = _builder(_name("cachefleet server"), issuer, key.public_key(), signing.public_key(), serial)
    builder = builder.not_valid_before(now - SKEW)
    builder = builder.not_valid_after(end_of(now, lifetimes.serving, authority.certificate))
    alternative = x509.SubjectAlternativeName([_general(name) for name in sorted(names)])
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True).add_extension(alternative, critical=False)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return _pair(builder.add_extension(server, critical=False).sign(signing, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    serial: int,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(serial)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(Certificate.read(pem), pem, key_pem)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
