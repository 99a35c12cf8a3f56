"""The live state of pools and workers behind one object, ``Fleet``: agents' reports in, decisions and views out.

agent_connection   one agent's connection: its worker, and its streams by rank
agent_connections  agents' connections: applies their frames to the index, sends policy and warm prefixes
block_holders      which workers hold a prefix
demand             requests that wait for a first worker or for room, for autoscalers
fleet              ``Fleet``: pools, models, decisions, agents, views
fleet_metrics      Prometheus gauges read at each scrape
load_sharing       what replicas tell each other of their requests in flight
losses             why blocks that a decision counted on are gone
startup_readiness  not ready until every ready worker's agent has reported, or a timeout
tenant_frames      tenants' shares and warm prefixes, sent to agents
view_builders      live state to frozen views
worker_arrivals    when a worker may be ready, by how long starts took
worker_troubles    what speaks against the answers of a worker, for requests that wait on it
"""
