"""What caches gave and what they lost: by request as it ends, and by hot prefix.

left_answers      what was made of whole answers whose clients left, by the engine's count
lost_hits         tokens not served from cache by cause, of requests as they end
prefix_list       the hottest prefixes, for people
request_recorder  what is kept of a request to simulate with
warm_keys         the block keys of declared warm prefixes
"""
