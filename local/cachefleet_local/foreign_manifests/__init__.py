"""Reads deployments of vLLM that other projects describe, and writes PrefixCachePools of them (pure).

documents        which reader a document is for; what may not be read (templates, unknown kinds)
draft            a pool that is being written: its fields so far, and what became of each field that was read
field_table      a reader as a table: paths of fields, and what happens with each
engine_words     vLLM's command line, word by word
weights          URIs of weights, as sources and volumes
pod_fields       pod and container specs, and environment variables
production_stack VLLMRuntime, and the values of production-stack's chart
model_service    the values of llm-d's chart llm-d-modelservice
inference_service KServe's LLMInferenceService
finishing        what no other project's manifest tells, and the YAML
"""
