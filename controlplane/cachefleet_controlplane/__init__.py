"""The control plane: an index of all cached blocks, routing decisions, an OpenAI-compatible gateway and an admin API.

__main__         ``python -m cachefleet_controlplane``, which ends with one sentence where native code cannot be used
exposition       counts that wait until they are read; the format of /metrics, OpenMetrics with exemplars too
inherited_sockets  listening sockets that outlive this process
internal_endpoints  /metrics and /healthz
metrics          Prometheus counters, gauges and histograms, one method per event
timed_bodies     middleware of the internal port that ends requests whose body is slow
admin/           admin API under /admin/v1
console/         pages for people under /console, made of the admin API's answers
internal_auth/   who may report and who may use the admin API
flushing/        evicts cached blocks of workers on request
fleet/           the live state of pools and workers, and their agents' connections
gateway/         the API of clients: admission, rendering, placement, attempts, conversations
history/         the last hour by pool, in memory: tokens, lost hits, load
hot_prefixes/    prefixes that many requests share, and telling new workers of them
index_queries/   read-only queries of the index by other routers
index/           which worker holds which block
pools/           where pools and worker endpoints come from; contracts and salts
prompt_causes/   where and by what prompts leave their nearest earlier ones
report_server/   WebSocket endpoint of the agents
routing/         the values of a routing decision, and what it rests on
selection/       candidates of one decision, and the choice among them in native code
store/           the database: decisions, tenants, usage
report_streams/  state machine of one agent's report stream
tenants/         tenants, API keys and limits
tracing/         OpenTelemetry: which requests are traced, their spans, W3C context
transport/       HTTP by native code, on threads of its own
wire/            HTTP exchanges, headers, error bodies, JSON members
wiring/          builds a replica from its settings, part by part
workers/         pools and workers with their load and in-flight requests
"""
