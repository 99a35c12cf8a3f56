"""HTTP client of the engine that the agent runs beside, and readers of its answers.

adapter_routes     vLLM's routes for adapters
adapter_use        adapters that an engine is busy with, out of the text of ``/metrics``
answers            usage, log-probabilities and finish reason out of completions
client             the requests: facts, metrics, policy, prompts run for their cache
load_metrics       load out of the text of ``/metrics``
real_configuration  the configuration that an engine says it has
suspension         why an engine that answers serves nothing
tls                how the engine is verified
tokenizer_probes   texts that identify a tokenizer and a chat template by their token ids
"""
