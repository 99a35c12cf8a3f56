"""Messages read from vLLM and from its cachefleet plugin.

kv_events    vLLM's KV event batches, and the plugin's marks in them
messages     inputs and effects of the follower; frames of vLLM's event sockets
plugin_api   answers of the plugin's routes under ``/v1/fleet``
"""
