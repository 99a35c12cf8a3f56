"""Secrets of certificates and the ConfigMap of the authorities to trust: manifests from pairs, and pairs from objects.

Manifests to replace an object keep what else that object has, and its version: a write that lost a race is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from cachefleet_operator import names
from cachefleet_operator.certificates.certificate import Certificate, CertificateError, Pair
from cachefleet_operator.certificates.rotation import Authorities
from cachefleet_operator.kube.objects import Ref

Manifest = dict[str, Any]

CURRENT: Final = ("current.crt", "current.key")
NEXT: Final = ("next.crt", "next.key")
PREVIOUS: Final = "previous.crt"
_END: Final = b"-----END CERTIFICATE-----"


def authority_secret(namespace: str, authorities: Authorities, live: Manifest | None = None) -> Manifest:
    """The Secret of the authorities' keys; nothing mounts it."""
    data = dict(zip(CURRENT, (authorities.current.pem, authorities.current.key_pem), strict=True))
    if authorities.next:
        data |= dict(zip(NEXT, (authorities.next.pem, authorities.next.key_pem), strict=True))
    if authorities.previous:
        data[PREVIOUS] = b"".join(pair.pem for pair in authorities.previous)
    return _secret(Ref("Secret", namespace, names.AUTHORITY), "Opaque", data, live)


def read_authorities(secret: Manifest) -> Authorities:
    """The authorities in their Secret. CertificateError."""
    data = contents(secret)
    current = _read_pair(data, CURRENT)
    if current is None:
        raise CertificateError(f"there is no {CURRENT[0]} with {CURRENT[1]}")
    previous = [part + _END + b"\n" for part in data.get(PREVIOUS, b"").split(_END) if part.strip()]
    past = tuple(Pair(Certificate.read(pem), pem.lstrip()) for pem in previous)
    return Authorities(current, _read_pair(data, NEXT), past)


def bundle_config_map(namespace: str, authorities: Authorities) -> Manifest:
    """What people and Prometheus trust: the authorities' certificates, no secret."""
    manifest = Ref("ConfigMap", namespace, names.AUTHORITY).manifest()
    manifest["metadata"]["labels"] = dict(names.OURS)
    return {**manifest, "data": {AUTHORITIES: authorities.bundle.decode()}}


def serving_secret(ref: Ref, pair: Pair, bundle: bytes, live: Manifest | None = None) -> Manifest:
    """The Secret that a server mounts: its certificate and key, and the authorities that it trusts as a client."""
    data = {CERTIFICATE: pair.pem, PRIVATE_KEY: pair.key_pem, AUTHORITIES: bundle}
    return _secret(ref, "kubernetes.io/tls", data, live)


def read_serving(secret: Manifest | None) -> Pair | None:
    """The pair in a server's Secret; None where there is none that can be used."""
    try:
        return _read_pair(contents(secret or {}), (CERTIFICATE, PRIVATE_KEY))
    except CertificateError:
        return None


def contents(secret: Manifest) -> Mapping[str, bytes]:
    """A Secret's data, decoded; what is no base64 is left out."""
    found = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(text)
        except (binascii.Error, ValueError, TypeError):
            continue
    return found


def _secret(ref: Ref, kind: str, data: Mapping[str, bytes], live: Manifest | None) -> Manifest:
    manifest = ref.manifest()
    given = {name: value for name, value in (live or {}).get("metadata", {}).items() if name != "managedFields"}
    labels = {**(given.get("labels") or {}), **names.OURS}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    metadata = {**given, **manifest["metadata"], "labels": labels}
    return {**manifest, "metadata": metadata, "type": kind, "data": encoded}


def _read_pair(data: Mapping[str, bytes], keys: tuple[str, str]) -> Pair | None:
    certificate, key = (data.get(name) for name in keys)
    return Pair.read(certificate, key) if certificate and key else None
