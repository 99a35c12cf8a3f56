"""The Kubernetes operator: reconciles PrefixCachePool resources into worker Deployments and writes their status.

certificates/         certificates for control plane and workers: what is due, issuing, their Secrets
controlplane_client/  the control plane's admin API: client, facts about pools, their cache
kube/                 Kubernetes objects, drift detection, leader election
manifests/            manifests of the objects that a pool owns
reconcile/            one reconciliation: plan, actions, rollouts
status/               a pool's status: conditions, events, pods
watching/             kopf watches and the work queue
__main__              entry point
metrics               Prometheus metrics
names                 names and labels of a pool's objects
pool_list             all pools, and the wait for their CRD
operator_times        intervals and timeouts that are the same in every installation
operator              what runs while the operator leads: watches, polls, resync, reconcile workers
probes                HTTP server of /healthz, /readyz and /metrics
reasons               reasons of conditions and events
settings              settings from environment variables
waiting               what keeps a leading operator from reconciling
"""
