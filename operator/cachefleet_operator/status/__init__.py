"""A pool's status: what is observed of its workers, and the conditions, events and fields made from that.

admission        the last admitted spec, kept in status
pool_assessment  verdict on the spec, worker counts, observations
conditions       conditions of the status
events           Kubernetes events for changed conditions
pods             worker pods
troubles         what keeps a pod from being ready
status           fields of the status, and when they are written
"""
