"""What runs beside and inside a vLLM engine.

agent/           the process beside an engine: reports its cached blocks and load to the control planes
plugin/          the vLLM plugin: gate, budget, snapshots, memoised tokenisation, block keys
adapter_weights  fetches revisions of adapters before an engine starts
plugin_install   copies the plugin to where the vLLM of another image finds it
drain_first      has an engine's server end only once its worker is drained
engine_start     runs vLLM's server with its key, its certificate and its adapters
"""
