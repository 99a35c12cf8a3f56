"""Pools and workers as a control plane reports them: made there once, published by its admin API, decoded by clients.

JSON has the names in camelCase. What a decoder does not know it ignores, and what an older control plane does not send
has its default, so that releases may differ; only names are required.

cache_worth     what workers' caches are worth; which worker goes first
capacity_facts  a pool's hit curve, and advice by it
fields          types of figures, with their bounds
pool_facts      a pool: contract, hit ratio, counts of its workers; lists of pools
tenant_limits   which limits a tenant may have, and their bounds
worker_facts    one rank of a worker: state, load, cache; lists of workers
"""
