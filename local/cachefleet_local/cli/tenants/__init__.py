"""``cachefleet tenants``.

key_commands     API keys of a tenant
tenant_commands  tenants, usage, idle caches, access without a key
"""
