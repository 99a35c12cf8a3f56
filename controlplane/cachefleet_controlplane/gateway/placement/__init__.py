"""From a request to a decision: the routing input, the wait for room, refusals, and the trace of it all.

hit_thresholds    the hit thresholds that apply to a request
key_affinity      the last worker of each prompt_cache_key
prompt_knowledge  what decisions rest on of a prompt
refusals          errors for requests that are sent to no worker
request_queue     requests that wait for room, tried again when there may be some
routing_input     model, salt, prompt and block keys of a request
decision_trace    notes on a request; its decision as headers, body and record
queue_order       the order of waiting requests; Retry-After by the service rate
"""
