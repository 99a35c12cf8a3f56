"""A pool's status: what is observed of its workers, and the conditions, events and fields made from that.

admission           the last admitted spec, kept in status
pool_assessment     verdict on the spec, worker counts, observations
conditions          conditions of the status
degraded            the condition Degraded: the worst problem of a worker
events              Kubernetes events for changed conditions
finding             one condition of a pool, before it has timestamps
gateway_acceptance  what gateways say of a pool's InferencePool
pods                worker pods
troubles            what keeps a pod from being ready
volume_failures     pods that wait for a volume, and what events say of it
status              fields of the status, and when they are written
"""
