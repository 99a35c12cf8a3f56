"""Accounts for requests as they end: record, usage, metrics, spans, tokens lost from the cache.

request_account    the entry, the outermost layer: accounts for a request however it ends
decision_told      the header that tells a client of its request's decision
hot_observer       feeds the tracker of hot prefixes with placed requests
left_answers       what was made of whole answers whose clients left, by the engine's count
lost_hits          tokens not served from cache by cause
prefix_list        the hottest prefixes, for people
prices             what used tokens cost, and what caches saved of it
prompt_losses      of first-seen tokens, where and why prompts leave their nearest earlier ones
request_spans      a traced request as spans
settled_requests   sums of ended requests, taken by metrics, usage and history when they are read
shortfall_records  why less of a prompt was cached than predicted, and what that tells of the worker
warm_keys          the block keys of declared warm prefixes
"""
