"""Tenants of the gateway: whose API key a request has, and whether its tenant is within its limits.

allowed_models     the models that an API key may use
budget_keeper      has budgets know what all replicas' tenants have used
budgets            what tenants have used in the day and month, held against their limits
directory          tenants and keys by name and hash, kept fresh from the store
lease_keeper       exchanges leases with other replicas, through the store
leases             what each replica may use of a limit: one token bucket, and its leases
limits             requests at once, and requests and tokens per minute, of one tenant
rate_limit_headers headers that tell what limits leave
revocations        revoked keys that are refused and not written yet
sql_leases         the token buckets that replicas share, in PostgreSQL
tenant_metrics     Prometheus counters per tenant
tenant_repository  what this room needs of the store
"""
