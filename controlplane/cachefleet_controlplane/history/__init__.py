"""An hour of what the caches of pools did, in memory: tokens served, tokens lost by cause, load and blocks.

cache_history  the last hour in steps, by pool and for the whole fleet
recorded_requests  the latest requests, to simulate with
sampler        samples load and blocks of pools once a step
seen_blocks    which blocks were computed lately, and where
"""
