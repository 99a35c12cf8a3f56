"""Commands of ``cachefleet`` and their output.

admin_client     HTTP client of the admin API
answers          asks the admin API, prints its answer
console_link     ``cachefleet console``: a link that signs in to the console once
doctor           ``cachefleet doctor``: certificates, hit probe
explain          ``cachefleet explain``: one decision
hit_probe        checks that a conversation's second turn is a cache hit
listing          items as a table, JSON or YAML
options          options that commands share
screen           output of ``cachefleet up``
tenant_commands  ``cachefleet tenants``: tenants, keys, usage, idle caches
up               ``cachefleet up``: a fleet in the foreground
"""
