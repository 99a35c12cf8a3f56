"""Formats and formulas that all processes share: pools, block keys, contracts, budgets, report frames, tenant keys.

Pure: nothing here opens a socket, reads a clock, uses a database or depends on its caller.

block_identity/    what names a block besides its tokens: adapter, media
environment/       environment variables that are not read any more
engine/            vLLM's command line and configuration for a pool
fleet_status/      pools and workers as the admin API publishes them and its clients read them
pool/              PrefixCachePool: schema, validation, CRD
block_keys         block keys
request_bodies     token ids in a JSON body
budget             memory arithmetic of a device
continuation       what workers keep of conversations, and how requests continue them
exit_statuses      why a process of a worker pod has ended
hit_rule           which prefix an engine serves from its cache, by its model's KV cache groups
index_contract     index contract and render profile
digest             digest of a set of held blocks
native             native code: required by control plane and agent, preferred by the plugin
native_block_keys  block keys by native code
prompt_keys        binary answer of /v1/fleet/keys
report_fields      types of the fields of reports, with their bounds
report_frames      frames between agent and control plane
tenancy            fleet key, derived keys, salts, API keys
tls_names          names of certificates and of their files
warmth             which warm prefixes a worker has cached, and which it cannot
"""
