"""Bounds the idle cached blocks of vLLM's block pool, least recently used first.

block_pool          observes the pool's methods and carries out evictions
budget_enforcement  the bound in force: installation, policy, stats, audit
chain_lru           eviction order by whole chains, for models with several KV cache groups
kv_groups           block bytes, and blocks that a hit needs, from vLLM's KV cache config
lru                 eviction order by block, for models with one full-attention group
"""
