"""Certificates as strict clients see them, and what of a Secret can be read back."""

from __future__ import annotations

import base64
import datetime as dt

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from cachefleet_operator.certificates.certificate import Certificate, CertificateError, Pair
from cachefleet_operator.certificates.certificate_secrets import authority_secret, read_authorities
from cachefleet_operator.certificates.issuing import new_authority, new_serving
from cachefleet_operator.certificates.rotation import Authorities, Lifetimes, prepared, promoted

DAY = dt.timedelta(days=1)
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LIFETIMES = Lifetimes(1825 * DAY, 90 * DAY, DAY)


def verify(pair: Pair, *authorities: Pair, name: str, at: dt.datetime = NOW) -> None:
    """As strictly as browsers."""
    trusted = Store([x509.load_pem_x509_certificate(each.pem) for each in authorities])
    verifier = PolicyBuilder().store(trusted).time(at.replace(tzinfo=None)).build_server_verifier(x509.DNSName(name))
    verifier.verify(x509.load_pem_x509_certificate(pair.pem), [])


def test_a_certificate_is_good_for_its_names_its_time_and_its_authority() -> None:
    authority, other = new_authority(NOW, LIFETIMES), new_authority(NOW, LIFETIMES)
    made = new_serving(authority, {"a.example", "b.example", "127.0.0.1"}, NOW, LIFETIMES)
    assert made.certificate.names == {"a.example", "b.example", "127.0.0.1"}
    assert made.certificate.issuer == authority.certificate.key
    verify(made, other, authority, name="b.example")
    for name, at in (("c.example", NOW), ("a.example", NOW + 91 * DAY), ("a.example", NOW - DAY)):
        with pytest.raises(VerificationError):
            verify(made, authority, name=name, at=at)
    with pytest.raises(VerificationError):
        verify(made, other, name="a.example")


def test_an_authority_signs_servers_and_no_other_authority() -> None:
    found = x509.load_pem_x509_certificate(new_authority(NOW, LIFETIMES).pem)
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=True, path_length=0
    )


def test_what_is_written_is_read_again() -> None:
    first = Authorities(new_authority(NOW, LIFETIMES))
    both = prepared(first, new_authority(NOW, LIFETIMES))
    after = promoted(prepared(promoted(both), new_authority(NOW, LIFETIMES)))
    for authorities in (first, both, promoted(both), after):
        assert read_authorities(authority_secret("ops", authorities)) == authorities
    assert len(after.previous) == 2


def test_no_key_is_shown() -> None:
    assert "PRIVATE" not in repr(new_authority(NOW, LIFETIMES))


@pytest.mark.parametrize("name", ["current.crt", "current.key"])
@pytest.mark.parametrize("content", [None, b"nothing", b""])
def test_a_broken_authority_is_an_error(name: str, content: bytes | None) -> None:
    secret = authority_secret("ops", Authorities(new_authority(NOW, LIFETIMES)))
    secret["data"][name] = None if content is None else base64.b64encode(content).decode()
    with pytest.raises(CertificateError):
        read_authorities(secret)


def test_a_key_of_another_certificate_is_an_error() -> None:
    one, other = new_authority(NOW, LIFETIMES), new_authority(NOW, LIFETIMES)
    with pytest.raises(CertificateError, match="not the certificate's"):
        Pair.read(one.pem, other.key_pem)


def test_a_certificate_without_key_identifiers_is_an_error() -> None:
    with pytest.raises(CertificateError, match="no certificate"):
        Certificate.read(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
