"""vLLM, stock or with the worker plugin: its routes, metrics, event stream and error texts.

events/             the KV event stream of one rank
adapter_info        adapters that an engine is busy with, out of the text of ``/metrics``
adapter_routes      routes for adapters
answers             usage, log-probabilities and finish reason out of completions
endpoints           ZeroMQ endpoints of a rank's event stream
http_client         the requests: facts, metrics, policy, prompts run for their cache
metrics_text        load out of the text of ``/metrics``
plugin_api          answers of the plugin's routes under ``/v1/fleet``
prompt_requests     bodies of prompts run for their cache
real_configuration  the configuration that an engine says it has
tokenizer_probes    texts that identify a tokenizer and a chat template by their token ids
vllm_engine         what wiring makes of the settings: implements the Protocol
vllm_facts          facts in the agent's terms
vllm_process        polls and event sources of one process
vllm_readings       all answers at the start of an epoch
"""
