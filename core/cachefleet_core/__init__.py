"""Formats and formulas that all processes share: pools, block keys, contracts, budgets, report frames, tenant keys.

Pure: nothing here opens a socket, reads a clock, uses a database or depends on its caller.

pool/              PrefixCachePool: schema, validation, CRD
block_keys         block keys
request_bodies     token ids in a JSON body
budget             memory arithmetic of a device
continuation       schemas of /v1/continue and /v1/handles
index_contract     index contract and render profile
digest             digest of a set of held blocks
engine_arguments   vLLM's command line, environment and policy for a pool
engine_configuration  what a pool asks of an engine, what the engine has, and where they differ
exit_statuses      why a process of a worker pod has ended
native             choice of the native or the Python backend
native_block_keys  block keys by the native backend
prompt_keys        binary answer of /v1/fleet/keys
report_frames      frames between agent and control plane
tenancy            fleet key, derived keys, salts, API keys
tls_names          names of certificates and of their files
"""
