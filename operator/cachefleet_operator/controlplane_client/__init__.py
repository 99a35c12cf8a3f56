"""What the operator learns from the control plane's admin API about each pool.

client       HTTP client of the admin API
name_claims  claims of pools to the names of their models
pool_facts   contract, hit ratio and workers of a pool, as the API answers
facts_cache  polls all pools, caches answers, queues pools whose facts changed
fleets       pools that serve the same model name, and how they differ
"""
