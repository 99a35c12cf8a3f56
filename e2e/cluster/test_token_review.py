"""Token checks against a real API server: tokens bound to pods, audiences, and roles."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes import client

from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Asked, Authorization
from cachefleet_controlplane.internal_auth.token_review import ReviewBounds, TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Hello
from cachefleet_runtime.kubernetes import KubernetesClient
from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube

pytestmark = pytest.mark.cluster

NAME = "demo-workers-1-aaaaa"
FORGETFUL = ReviewBounds(known_seconds=0, unknown_seconds=0, allow_seconds=0, deny_seconds=0)
CONTRACT = IndexContract(weights="w", tokenizer="t", block_size=16)


def hello(worker: str, pool: str) -> Hello:
    return Hello(worker=worker, pool=pool, epoch="e", endpoint="http://x", contract=CONTRACT)


class Accounts:
    """Service accounts of one namespace, their pods and tokens."""

    def __init__(self, api: client.ApiClient, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._core = client.CoreV1Api(api)
        self._rbac = client.RbacAuthorizationV1Api(api)
        self.namespace = namespace
        account = client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="worker"))
        self._core.create_namespaced_service_account(namespace, account)

    def pod(self, name: str) -> Any:
        spec = client.V1PodSpec(
            service_account_name="worker",
            node_name="nowhere",
            containers=[client.V1Container(name="engine", image="vllm:v1")],
        )
        pod = client.V1Pod(metadata=client.V1ObjectMeta(name=name), spec=spec)
        return self._core.create_namespaced_pod(self.namespace, pod)

    def remove(self, pod: str) -> None:
        self._core.delete_namespaced_pod(pod, self.namespace, grace_period_seconds=0)

    def token(self, *, pod: Any = None, audience: str = "cachefleet") -> str:
        bound = pod and client.V1BoundObjectReference(
            api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid
        )
        spec = client.V1TokenRequestSpec(audiences=[audience], bound_object_ref=bound)
        issued: Any = self._core.create_namespaced_service_account_token(
            "worker", self.namespace, client.AuthenticationV1TokenRequest(spec=spec)
        )
        return str(issued.status.token)

    def allow(self, *verbs: str, resource: str = "prefixcachepools") -> None:
        """Let the account do something to the pools of its namespace, or to what else roles may name."""
        rule = client.V1PolicyRule(api_groups=["cachefleet.io"], resources=[resource], verbs=list(verbs))
        metadata = client.V1ObjectMeta(name="pools")
        self._rbac.create_namespaced_role(self.namespace, client.V1Role(metadata=metadata, rules=[rule]))
        role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name="pools")
        subject = client.RbacV1Subject(kind="ServiceAccount", name="worker", namespace=self.namespace)
        binding = client.V1RoleBinding(metadata=metadata, role_ref=role, subjects=[subject])
        self._rbac.create_namespaced_role_binding(self.namespace, binding)
        user = f"system:serviceaccount:{self.namespace}:worker"
        rights.wait_for_right(self._kube, user, "cachefleet.io", resource, verbs[0], namespace=self.namespace)


@pytest.fixture(scope="module")
def reviewer(api: client.ApiClient, kube: Kube) -> Identity:
    """May review, and nothing else; another one each time."""
    made = Identity(f"token-reviewer-{uuid.uuid4().hex[:8]}")
    role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name="system:auth-delegator")
    subject = client.RbacV1Subject(api_group="rbac.authorization.k8s.io", kind="User", name=made.name)
    binding = client.V1ClusterRoleBinding(
        metadata=client.V1ObjectMeta(name=made.name), role_ref=role, subjects=[subject]
    )
    client.RbacAuthorizationV1Api(api).create_cluster_role_binding(binding)
    rights.wait_for_right(kube, made.name, "authentication.k8s.io", "tokenreviews", "create")
    return made


@pytest.fixture
def accounts(api: client.ApiClient, controllers: ApiServer, kube: Kube, namespace: str) -> Accounts:
    return Accounts(api, kube, namespace)


@pytest.fixture
async def authorizer(cluster: ApiServer, reviewer: Identity) -> AsyncIterator[TokenReviewAuthorizer]:
    api = await KubernetesClient.connect(cluster.kubeconfig_for(reviewer))
    yield TokenReviewAuthorizer(api, metrics=Metrics(), bounds=FORGETFUL)
    await api.close()


async def test_a_pod_speaks_for_itself_in_its_namespace(
    accounts: Accounts, authorizer: TokenReviewAuthorizer, namespace: str
) -> None:
    token = accounts.token(pod=accounts.pod(NAME))
    assert await authorizer.reports(token, hello(NAME, f"{namespace}/demo"))
    assert not await authorizer.reports(token, hello("demo-workers-1-bbbbb", f"{namespace}/demo"))
    assert not await authorizer.reports(token, hello(NAME, "default/demo"))


async def test_other_tokens_report_nothing(
    accounts: Accounts, authorizer: TokenReviewAuthorizer, namespace: str
) -> None:
    pod = accounts.pod(NAME)
    mine = hello(NAME, f"{namespace}/demo")
    whole = accounts.token(pod=pod)
    tokens = {
        "of another audience": accounts.token(pod=pod, audience="https://kubernetes.default.svc.cluster.local"),
        "of no pod": accounts.token(),
        "forged": whole[:-8] + "AAAAAAAA",
        "none at all": "x",
    }
    assert {name for name, token in tokens.items() if await authorizer.reports(token, mine)} == set()
    accounts.remove(NAME)
    # A token dies with its pod, as soon as the API server's own view of pods and tokens has caught up.
    async with asyncio.timeout(120):
        while await authorizer.reports(whole, mine):  # noqa: ASYNC110 - a server is what changes it
            await asyncio.sleep(0.2)


async def test_roles_on_pools_open_the_admin_api(
    accounts: Accounts, authorizer: TokenReviewAuthorizer, namespace: str
) -> None:
    token = accounts.token()
    question = Asked("get", namespace, "demo")
    assert await authorizer.admin(token, question) is Authorization.FORBIDDEN
    accounts.allow("get", "list")
    assert await authorizer.admin(token, question) is Authorization.ALLOWED
    assert await authorizer.admin(token, Asked("update", namespace, "demo")) is Authorization.FORBIDDEN
    assert await authorizer.admin(token, Asked("list")) is Authorization.FORBIDDEN, "a role is for its namespace"
    assert await authorizer.admin("x", question) is Authorization.UNAUTHENTICATED
    other = accounts.token(audience="https://kubernetes.default.svc.cluster.local")
    assert await authorizer.admin(other, question) is Authorization.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("resource", "mine", "not_mine"),
    [
        ("prefixcachepools/routing", asked("PUT", "/routing"), asked("POST", "/flush")),
        ("tenants/keys", asked("POST", "/tenants/acme/keys"), asked("PATCH", "/tenants/acme")),
    ],
)
async def test_roles_name_parts_of_pools_and_what_does_not_exist(  # noqa: PLR0917 - fixtures
    cluster: ApiServer,
    reviewer: Identity,
    accounts: Accounts,
    namespace: str,
    resource: str,
    mine: Asked,
    not_mine: Asked,
) -> None:
    api = await KubernetesClient.connect(cluster.kubeconfig_for(reviewer))
    authorizer = TokenReviewAuthorizer(api, metrics=Metrics(), namespaces=(namespace,))
    accounts.allow(mine.verb, resource=resource)
    token = accounts.token()
    assert await authorizer.admin(token, mine) is Authorization.ALLOWED
    assert await authorizer.admin(token, not_mine) is Authorization.FORBIDDEN
    assert await authorizer.admin(token, Asked("list")) is Authorization.FORBIDDEN
    await api.close()


async def test_one_namespace_is_enough_where_one_is_served(
    cluster: ApiServer, reviewer: Identity, accounts: Accounts, namespace: str
) -> None:
    accounts.allow("list")
    api = await KubernetesClient.connect(cluster.kubeconfig_for(reviewer))
    authorizer = TokenReviewAuthorizer(api, metrics=Metrics(), namespaces=(namespace,))
    assert await authorizer.admin(accounts.token(), Asked("list")) is Authorization.ALLOWED
    await api.close()


async def test_who_may_not_review_lets_nobody_in(cluster: ApiServer, accounts: Accounts, namespace: str) -> None:
    api = await KubernetesClient.connect(cluster.kubeconfig_for(Identity("may-nothing")))
    try:
        authorizer = TokenReviewAuthorizer(api, metrics=Metrics())
        token = accounts.token(pod=accounts.pod(NAME))
        with pytest.raises(AccessUnavailableError):
            await authorizer.reports(token, hello(NAME, f"{namespace}/demo"))
        with pytest.raises(AccessUnavailableError):
            await authorizer.admin(token, Asked("list"))
    finally:
        await api.close()
