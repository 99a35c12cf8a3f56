"""Pools and workers as this replica knows them: registration, reports, and their frozen views.

cache_shares     tenants' shares of the idle cache, and what they have of it
hit_window       prefix-cache hits of a pool's engines over a sliding window
adapter_slots    which adapters a worker serves and has on its device
block_keyers     block keyers by fleet, contract, salt and adapter
models_elsewhere models of pools that other control planes serve
load             a worker's load, as its last report tells it
pool             one declared pool: workers, policy, what is learnt
refuted_blocks   blocks that the index has and an engine has just denied
registry         all pools and workers, and the models they serve
render_profiles  facts that rendering for a model depends on
sent_texts       texts of prompts sent to each worker, where block keys are unknown
unindexed_hits   whether an engine serves from a cache of which the index holds nothing
views            frozen views of pools and workers
warm_prefixes    the standing Warm frame of each pool
worker           one rank of one worker: endpoint, stream, load
worth/           what work and evictions cost others, as learnt
"""
