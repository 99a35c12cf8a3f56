"""Where pools and their workers' endpoints come from, and what pools declare: index contracts and salts.

block_bounds        how many blocks a worker may claim to hold
first_ready_times   when each pool of a file first had a ready worker, for names of models
control_plane_share which pools this control plane serves
index_contracts     the index contract in force in a pool, and how a worker's differs
inference_objectives  priorities of requests by InferenceObjectives of a cluster
kubernetes_objects  PrefixCachePools and EndpointSlices: parsed, kept by name, merged
kubernetes_source   pools and endpoints from the Kubernetes API
cache_salts         the cache salt of each tenant
model_aliases       which models a name means that is an alias
recent_endpoints    endpoints whose EndpointSlices went out of sight, kept for a while
source              the PoolSource Protocol, and pools and endpoints from two files
"""
