"""The fleet key, the keys derived from it, tenants' cache salts and clients' API keys.

One fleet key; from it, by HKDF (RFC 5869, SHA-256): the index key (gateway only; from it, by HMAC, that of each fleet,
which agents and engines of the fleet's pools hold as well: block keys), the salt key
(gateway only: tenants' salts), the API key hash key (control plane only: what clients' keys are stored as), the history
key (control plane only: stored conversations), a worker key for each pool (the credential between control plane, agent
and engine) and, where no Kubernetes issues tokens, a report token for each worker (its agent's alone). Knowing a
derived key tells nothing of the others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final, NewType

TenantId = NewType("TenantId", str)

DEFAULT_TENANT = TenantId("default")
API_KEY_PREFIX: Final = "cf-"
API_KEY_HINT: Final = len(API_KEY_PREFIX) + 6
"""Number of leading characters of an API key that are kept to recognise it: 36 bits of its 256."""
SALT_DIGEST_CHARACTERS: Final = 32
_KEY_BYTES = 32


class FleetKey:
    """The secret of a fleet: 32 bytes, written as URL-safe base64."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise ValueError(f"a fleet key is {_KEY_BYTES} bytes, got {len(secret)}")
        self._secret = secret

    @classmethod
    def generate(cls) -> FleetKey:
        """A new random key."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> FleetKey:
        """Read what ``format`` wrote. ValueError where it is not 32 bytes of base64."""
        try:
            return cls(base64.urlsafe_b64decode(text.strip().encode()))
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ValueError("a fleet key is 32 bytes in URL-safe base64") from error

    def format(self) -> str:
        """The key as text, which ``parse`` reads."""
        return base64.urlsafe_b64encode(self._secret).decode()

    @property
    def index_key(self) -> bytes:
        """Key from which every fleet's index key is made; held by the gateway alone."""
        return self._derive("index")

    @property
    def salt_key(self) -> bytes:
        """Key of tenants' cache salts; held by the gateway alone."""
        return self._derive("salt")

    @property
    def api_key_hash_key(self) -> bytes:
        """Key of the hashes by which API keys are stored; held by the control plane alone."""
        return self._derive("api-keys")

    @property
    def history_key(self) -> bytes:
        """Key that encrypts and names stored conversations; held by the control plane alone."""
        return self._derive("history")

    def worker_key(self, pool: str) -> str:
        """The credential of the workers of ``pool`` ("namespace/name"), as text for an Authorization header."""
        return base64.urlsafe_b64encode(self._derive(f"worker/{pool}")).decode().rstrip("=")

    def report_token(self, pool: str, worker: str) -> str:
        """The agent's credential for the control plane: the worker's name and a MAC of it."""
        return self._signed(f"{pool}/{worker}")

    def reporter(self, token: str) -> str:
        """The "pool/worker" that a report token belongs to; "" where it is invalid."""
        name = token.rpartition(".")[0]
        return name if hmac.compare_digest(self._signed(name).encode(), token.encode()) else ""

    def _signed(self, name: str) -> str:
        return f"{name}." + base64.urlsafe_b64encode(self._derive(f"report/{name}")).decode().rstrip("=")

    def __repr__(self) -> str:
        return "FleetKey(...)"

    def _derive(self, purpose: str) -> bytes:
        """HKDF with an empty salt; one block of output is one HMAC of ``info || 0x01``."""
        extracted = hmac.digest(bytes(_KEY_BYTES), self._secret, "sha256")
        return hmac.digest(extracted, b"cachefleet/" + purpose.encode() + b"\x01", "sha256")


def fleet_index_key(index_key: bytes, namespace: str, model: str) -> bytes:
    """Key of the namespaces of block keys of one fleet: of the pools of a namespace that serve one model name."""
    return hmac.digest(index_key, f"{namespace}/{model}".encode(), "sha256")


def parse_index_key(text: bytes) -> bytes:
    """The index key in the text of its file. ValueError where it is not 32 bytes in URL-safe base64."""
    if b"+" in text or b"/" in text:  # which the decoder takes as well
        raise ValueError("not URL-safe base64")
    try:
        key = base64.b64decode(text.strip(), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not URL-safe base64") from error
    if len(key) != _KEY_BYTES:
        raise ValueError(f"an index key is {_KEY_BYTES} bytes, got {len(key)}")
    return key


def tenant_salt(salt_key: bytes, tenant: TenantId, version: int = 1) -> str:
    """The ``cache_salt`` of a tenant: stable, unpredictable without the salt key, new with each ``version``."""
    message = f"{version}/{tenant}".encode()
    return base64.urlsafe_b64encode(hmac.digest(salt_key, message, "sha256")).decode().rstrip("=")


def salt_digest(salt: str) -> str:
    """Digest that names a tenant to an agent without revealing its salt: 128 bits, in hexadecimal."""
    return hashlib.sha256(b"cachefleet/salt/" + salt.encode()).hexdigest()[:SALT_DIGEST_CHARACTERS]


def new_api_key(secret: bytes) -> str:
    """The API key made of 32 random bytes, as text for an Authorization header. ValueError for another number."""
    if len(secret) != _KEY_BYTES:
        raise ValueError(f"an API key is made of {_KEY_BYTES} bytes, got {len(secret)}")
    return API_KEY_PREFIX + base64.urlsafe_b64encode(secret).decode().rstrip("=")


def api_key_hash(hash_key: bytes, key: bytes) -> str:
    """Hash that is stored instead of an API key: without ``hash_key`` no guess can be checked against it."""
    return hmac.digest(hash_key, key, "sha256").hex()
