"""From a request to a decision: the wait for room, and refusals.

placement_decision  the decision for a request now
key_affinity        the last worker of each prompt_cache_key
refusals            errors for requests that are sent to no worker
request_queue       requests that wait for room, tried again when there may be some
queue_order         the order of waiting requests: priorities, then shares
fair_shares         the shares of tenants of one priority, by computed tokens
queue_places        who gives up a place where all are taken
keyed_heap          items in the order of keys that change
service_rate        Retry-After by the rate at which requests end
tenant_activity     who uses which fleets, and what bounds a tenant only while others are there
"""
