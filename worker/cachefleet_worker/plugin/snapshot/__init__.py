"""Snapshots of an engine's resident blocks, and heartbeats in its event stream.

ancestry           blocks with what names them, and which others come after
cache_groups       the KV cache groups, as agents are told of them
event_batches      a copy of the ledger as event batches, parents first
publisher_proxy    stands before vLLM's event publisher: ledger, heartbeats, removals of one copy
snapshot_relay     ``GET /v1/fleet/snapshot``: from the engine's socket to the client
resident_ledger    the resident blocks, as the published events tell
snapshot           sends snapshots from a thread of their own; installation, stats, audit
window_events      events of windows list every block where no other group names them
"""
