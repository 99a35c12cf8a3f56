"""The audit log: who asked the admin API to change what.

audit_middleware  notes each request that is not a mere reading
audit_routes      ``GET /admin/v1/audit``, as pages and as JSON lines
audit_schemas     entries as the API shows them
"""
