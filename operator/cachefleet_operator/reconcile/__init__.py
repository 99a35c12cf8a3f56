"""One reconciliation of a pool: read its state, plan, carry out.

apply                actions of a plan, and their API requests
certificate_renewal  certificates that are issued, or read, in one term of leadership
chat_template        a pool's chat template, read from its ConfigMap
control_plane_pools  pools by the control plane that they name
deletion_cost        pod deletion costs from the value of each worker's cache
field_conflicts      others that write the same fields again and again
fleet_key            the fleet key, read from its Secret
futile_applies       applied manifests that changed nothing
inference_pools      a pool's InferencePool, made, mended and deleted
plan                 from desired and observed state to actions
reconciler           one pass over one pool
released_pods        pods that lost their ReplicaSet with a label
replica_sets         ReplicaSets of a Deployment, and which are of another template than it
rollout              pauses rollouts that fail
volume_events        events of pods that wait for a volume
worker_keys          a pool's keys against the fleet key
"""
