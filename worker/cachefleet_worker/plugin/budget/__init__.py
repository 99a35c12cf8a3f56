"""Bounds the idle cached blocks of vLLM's block pool, least recently used first.

budget           the bound in force: installation, policy, stats, audit
block_eviction   eviction order by block, for models with one full-attention group
block_pool       what the pool's methods tell, and evictions
chain            chains of idle blocks, and which is evicted next
chain_eviction   eviction order by whole chains, for models with several KV cache groups
contract_ages    which blocks of an owner with a contract are past its retention
kv_groups        block bytes, and blocks that a hit needs, from vLLM's KV cache config
owners           whose a block is, and how long it is to be kept
ranking          idle blocks in the order of their eviction
watched_classes  subclasses of vLLM's pool and manager that tell what they do
"""
