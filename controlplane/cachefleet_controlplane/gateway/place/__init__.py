"""From a request to a decision: the wait for room, and refusals.

placement_decision  the decision for a request now
key_affinity        the last worker of each prompt_cache_key
refusals            errors for requests that are sent to no worker
request_queue       requests that wait for room, tried again when there may be some
queue_order         the order of waiting requests; Retry-After by the service rate
"""
