"""Snapshots of an engine's resident blocks, and heartbeats in its event stream.

event_batches    a copy of the ledger as event batches, parents first
publisher_proxy  stands before vLLM's event publisher: ledger, heartbeats, removals of one copy
snapshot_relay   ``GET /v1/fleet/snapshot``: from the engine's socket to the client
resident_ledger  the resident blocks, as the published events tell
snapshot         sends snapshots from a thread of their own; installation, stats, audit
"""
