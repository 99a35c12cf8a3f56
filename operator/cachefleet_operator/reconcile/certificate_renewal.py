"""Keeps certificates valid: renews those that this operator issues, and reads those issued by others."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_operator import names
from cachefleet_operator.certificates.certificate import CertificateError, Pair
from cachefleet_operator.certificates.certificate_secrets import (
    authority_secret,
    bundle_config_map,
    contents,
    read_authorities,
    read_serving,
    serving_secret,
)
from cachefleet_operator.certificates.issuing import new_authority, new_serving
from cachefleet_operator.certificates.rotation import (
    Authorities,
    Lifetimes,
    Step,
    prepared,
    promoted,
    reason_to_issue,
    retired,
    step,
)
from cachefleet_operator.certificates.server_names import control_plane_names, worker_names
from cachefleet_operator.certificates.trust import Trust
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.child_objects import certificate_secret
from cachefleet_operator.reconcile.apply import Applier, Apply, Create, Replace
from cachefleet_operator.settings import Settings
from cachefleet_runtime.kubernetes import Object

log = logging.getLogger(__name__)

Manifest = dict[str, Any]


class GetApi(Protocol):
    """The API request by which certificates are read."""

    async def get(self, ref: Ref) -> Object | None: ...


class Expiries(Protocol):
    """Receives the expiry of each certificate that was read or written."""

    def certificate(self, ref: Ref, ends: dt.datetime) -> None: ...


SPREAD_SECONDS: Final = 3600.0
"""How long a new authority is trusted before it signs: the kubelet takes up to two minutes to pass a Secret on."""


class Certificates(Protocol):
    """The certificates of one term of leadership."""

    async def renew(self) -> None:
        """Do what is due for the authority and the control plane. KubernetesError, CertificateError."""

    def made(self, pool: PrefixCachePool) -> tuple[Manifest, ...]:
        """The Secret of a pool's workers, which is not there. CertificateError where there can be none."""
        ...

    def renewed(self, pool: str, live: Object) -> tuple[Manifest, ...]:
        """The Secret of the workers of a pool, "namespace/name", where that is to be replaced, whatever its spec."""
        ...


class GivenCertificates:
    """Certificates issued by others, for instance cert-manager; only the authority is read."""

    def __init__(self, api: GetApi, settings: Settings, trust: Trust) -> None:
        self._api = api
        self._ref = Ref("Secret", settings.operator_namespace, settings.tls_secret)
        self._trust = trust

    async def renew(self) -> None:
        """See ``Certificates.renew``."""
        secret = await self._api.get(self._ref)
        if secret is None:
            raise CertificateError(f"{self._ref} is not there")
        bundle = contents(secret).get(AUTHORITIES, b"")
        try:
            self._trust.learn(bundle)
        except CertificateError as error:
            raise CertificateError(f"{self._ref}: {error}") from error

    def made(self, _pool: PrefixCachePool) -> tuple[Manifest, ...]:
        """None: they are not ours."""
        return ()

    def renewed(self, _pool: str, _live: Object) -> tuple[Manifest, ...]:
        """None: they are not ours."""
        return ()


class IssuedCertificates:
    """An authority of the operator's own. Make a new one for each term of leadership."""

    def __init__(
        self,
        api: GetApi,
        applier: Applier,
        settings: Settings,
        trust: Trust,
        *,
        today: Callable[[], dt.datetime],
        expiries: Expiries,
        spread_seconds: float = SPREAD_SECONDS,
    ) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._trust = trust
        self._today = today
        self._expiries = expiries
        self._lifetimes = Lifetimes(
            authority=dt.timedelta(days=settings.tls_authority_days),
            serving=dt.timedelta(days=settings.tls_certificate_days),
            spread=dt.timedelta(seconds=spread_seconds),
        )
        self._plane = Ref("Secret", settings.operator_namespace, settings.tls_secret)
        self._since = today()
        self._authorities: Authorities | None = None

    async def renew(self) -> None:
        """See ``Certificates.renew``."""
        live = await self._api.get(self._plane)
        self._measure(self._plane, live)
        authorities = self._authorities = await self._authority()
        self._trust.learn(authorities.bundle)
        await self._serve(authorities, live)
        await self._publish_bundle(authorities)

    def made(self, pool: PrefixCachePool) -> tuple[Manifest, ...]:
        """See ``Certificates.made``."""
        if self._authorities is None:
            raise CertificateError(f"Secret {self._settings.operator_namespace}/{names.AUTHORITY} cannot be used")
        base = certificate_secret(pool)
        return self._due(Ref.of(base), worker_names(pool.key), self._authorities, None, base)

    def renewed(self, pool: str, live: Object) -> tuple[Manifest, ...]:
        """See ``Certificates.renewed``. What is there is left as it is while the authority cannot be used."""
        ref = Ref.of(live)
        self._measure(ref, live)
        return self._due(ref, worker_names(pool), self._authorities, live, live) if self._authorities else ()

    async def _authority(self) -> Authorities:
        """The authorities after the steps that are due, as their Secret has them."""
        ref, now = Ref("Secret", self._settings.operator_namespace, names.AUTHORITY), self._today()
        secret = await self._api.get(ref)
        if secret is None:
            made = Authorities(new_authority(now, self._lifetimes))
            await self._applier.act(Create(authority_secret(ref.namespace, made)))
            self._expiries.certificate(ref, made.current.certificate.ends)
            return made
        try:
            found = read_authorities(secret)
        except CertificateError as error:
            raise CertificateError(f"{ref}: {error}") from error
        self._expiries.certificate(ref, found.current.certificate.ends)
        after = self._advanced(found, now)
        if after != found:
            await self._applier.act(Replace(authority_secret(ref.namespace, after, secret)))
        self._expiries.certificate(ref, after.current.certificate.ends)
        return after

    def _advanced(self, authorities: Authorities, now: dt.datetime) -> Authorities:
        while (due := step(authorities, now, self._lifetimes, since=self._since)) is not Step.KEEP:
            log.info("the authority of certificates: %s", due.value)
            match due:
                case Step.PREPARE:
                    authorities = prepared(authorities, new_authority(now, self._lifetimes))
                    self._since = now
                case Step.PROMOTE:
                    authorities = promoted(authorities)
                case _:
                    authorities = retired(authorities, now)
        return authorities

    async def _publish_bundle(self, authorities: Authorities) -> None:
        """Publish what to trust, for people and Prometheus."""
        wanted = bundle_config_map(self._settings.operator_namespace, authorities)
        live = await self._api.get(Ref.of(wanted))
        if live is None or live.get("data") != wanted["data"]:
            await self._applier.act(Apply(wanted))

    async def _serve(self, authorities: Authorities, live: Object | None) -> None:
        """Issue the control plane's certificate where that is due."""
        if live and not names.is_ours(live):
            raise CertificateError(f"{self._plane} exists and is not the operator's")
        for manifest in self._due(self._plane, control_plane_names(self._settings), authorities, live, live):
            await self._applier.act(Create(manifest) if live is None else Replace(manifest))
            self._measure(self._plane, manifest)

    def _measure(self, ref: Ref, live: Object | None) -> None:
        """Tell when the certificate in a Secret ends, as it is in the API server: a write may be refused."""
        if live and names.is_ours(live) and (found := read_serving(live)):
            self._expiries.certificate(ref, found.certificate.ends)

    def _due(
        self,
        ref: Ref,
        wanted: frozenset[str],
        authorities: Authorities,
        live: Object | None,
        base: Object | None,
    ) -> tuple[Manifest, ...]:
        """The Secret of a server's certificate where it is to be written; ``base`` gives its metadata."""
        found = read_serving(live)
        pair = self._kept_or_issued(ref, found, wanted, authorities)
        if pair is found and contents(live or {}).get(AUTHORITIES) == authorities.bundle:
            return ()
        return (serving_secret(ref, pair, authorities.bundle, base),)

    def _kept_or_issued(self, ref: Ref, found: Pair | None, wanted: frozenset[str], authorities: Authorities) -> Pair:
        signing, now = authorities.current, self._today()
        reason = reason_to_issue(found.certificate if found else None, wanted, signing.certificate, now)
        if found and not reason:
            return found
        log.info("a certificate is issued: %s", reason, extra={"secret": str(ref)})
        return new_serving(signing, wanted, now, self._lifetimes)


def certificates(
    api: GetApi,
    applier: Applier,
    settings: Settings,
    trust: Trust,
    *,
    today: Callable[[], dt.datetime],
    expiries: Expiries,
) -> Certificates | None:
    """What the settings ask for; None where there is no TLS."""
    match settings.tls:
        case "issued":
            return IssuedCertificates(api, applier, settings, trust, today=today, expiries=expiries)
        case "existing":
            return GivenCertificates(api, settings, trust)
        case _:
            return None
