"""How a replica of the control plane is put together: each part built from the settings.

replica_process     the process of a replica: two HTTP servers, signals, drain, exit status
control_plane       one replica: its parts and their tasks
replica_state       whether the replica is ready, and its state for findings
settings            environment variables
replica_bounds      times and sizes that are the same in every installation
store_parts         the store, the log of decisions, the audit log
tenant_parts        tenants, their admission and usage
transport_parts     native transport, TLS of the ports and towards workers, client of workers
fleet_parts         the fleet and its indexes
history_parts       the last hour, recorded requests, their simulator
batch_parts         batches: what keeps and runs them
conversation_parts  what continues conversations
gateway_parts       what the gateway is made of; the tracer that OTEL_* variables ask for
hot_prefix_parts    the tracker of hot prefixes and its users
pool_parts          where pools come from, and who checks tokens
internal_app        the application of the internal port
"""
