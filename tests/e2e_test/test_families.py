"""Which IP families a node of the tests has, and the addresses that follow from them."""

from __future__ import annotations

import ipaddress

import pytest

from e2e.cluster.binaries import UnavailableError
from e2e.node.families import BOTH, VARIABLE, Family, bracketed, chosen, names_of


@pytest.mark.parametrize(
    ("value", "names"),
    [("", ("ipv4",)), ("ipv4", ("ipv4",)), ("ipv6", ("ipv6",)), ("ipv4,ipv6", ("ipv4", "ipv6"))],
)
def test_the_variable_names_the_families(value: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert tuple(family.name for family in chosen()) == names


@pytest.mark.parametrize("value", ["ipv5", "IPv6", "ipv6,ipv4", "ipv4, ipv6", "ipv4,", "4"])
def test_another_value_is_refused_with_those_that_there_are(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UnavailableError, match="must be one of ipv4 ipv6 ipv4,ipv6"):
        chosen()


@pytest.mark.parametrize("family", BOTH, ids=lambda family: family.name)
def test_addresses_of_a_family_are_of_one_range_and_nobody_else_s(family: Family) -> None:
    own = (family.node, family.machine, family.first_pod)
    assert names_of(own) == (family.name,) * 3
    assert len(set(own)) == 3
    pods, services = ipaddress.ip_network(family.pods), ipaddress.ip_network(family.services)
    assert all(ipaddress.ip_address(address) in pods for address in own)
    assert not pods.overlaps(services)
    assert max(map(ipaddress.ip_address, own)) == ipaddress.ip_address(family.first_pod), "pods follow the others"


def test_an_address_in_a_url() -> None:
    assert [bracketed(address) for address in ("10.77.0.1", "fd77::1")] == ["10.77.0.1", "[fd77::1]"]
