"""Evicts idle cached blocks that somebody names: all of them, of a tenant, of an adapter, of prompts that begin alike.

cache_flush  finds them in vLLM's block pool and evicts them; installation
flush_route  ``POST /v1/fleet/flush``: from a request to the engines' answers
selection    which blocks are meant, from what the published events tell of them
"""
