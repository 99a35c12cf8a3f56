"""Block keys and safe boundaries of a request body, for routing it.

held_requests  requests that wait between rendering and answer, framed
key_service    ``POST /v1/fleet/keys``: query, limits, the document
key_cache      block keys of token ids, with shared beginnings hashed once
prompt_media   images and the like of a rendered prompt
render         token ids of a body, by vLLM's own renderer
"""
