"""A prompt's length and block keys: from renderers and workers, from caches, or estimated from its text.

dedicated_renderers  renderers without a GPU: whose turn it is, and their health
hold                 the request itself, held by the worker that is asked for its keys
keying               token ids to block keys
know_layer           the entry: has requests answered whose prompts are looked up
prompt_lookup        completes requests with salt, body, and what decisions rest on of the prompt
render_cache         rendered prompts by a digest of the request
render_ladder        which routes of which workers to try, in which order
renderer             goes through the ladder within a timeout
rendering_result     what a route's answer says, or why it gives no ids
text_keys            keys and length of a prompt by its text alone
"""
