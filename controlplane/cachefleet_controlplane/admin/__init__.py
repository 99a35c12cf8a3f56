"""The admin API under ``/admin/v1`` for operators of a fleet: workers, decisions, tenants, usage, routing policy.

access_routes         whether requests without an API key are served
admin_app             the FastAPI application of all routes
admin_openapi         the OpenAPI document with its error responses
auth_middleware       authorizes each request; bounds bodies
certification_routes  certified render profiles, and examining them
explain_routes        POST /explain: what would be decided for a request
findings_routes       GET /findings: what is wrong, and what to do
fleet_routes          pools, workers, idle caches; the routing policy
flush_routes          POST /flush: evict cached blocks
problem_responses     errors as problem JSON (RFC 9457)
schemas               base of all schemas, problems, routing policy
simulate_routes       POST /simulate: another policy, budget or number of workers
tenant_routes         tenants and their API keys
tenant_schemas        requests and answers about tenants, keys and usage
tenant_service        changes tenants and keys in the store and in this replica
usage_routes          usage by hour, as JSON or CSV
answers/              ETags, pages, JSON lines
audit/                who changed what
decisions/            past decisions: search, export, stream
findings/             what is wrong and what to do
history/              the last hour: tokens, lost hits, hot prefixes, hit curves with advice
"""
