"""A prompt's length and block keys: from renderers and workers, from caches, or estimated from its text.

prompt_lookup        the entry, a layer: completes requests with salt, body, and what decisions rest on of the prompt
render_cache         rendered prompts by a digest of the request
render_ladder        which routes of which workers to try, in which order; dedicated renderers
renderer             goes through the ladder within a timeout; may have the worker asked hold the request
rendering_result     token ids to block keys; what a route's answer says, or why it gives no ids
text_keys            keys and length of a prompt by its text alone
"""
