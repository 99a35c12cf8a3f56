"""Handles: prompt prefixes kept by name, and requests that continue them (docs/continue.md).

prompt_routes       the routes: authorisation, limits, errors
continuation        checks a request against its handle; builds the engine's prompt and the next handle
prompt_handles      the kept prefixes, bounded in number and bytes
produced_tokens     reads tokens, usage and finish reason out of the engine's answers
continuation_relay  sends a continued prompt to the engine and relays its answer
"""
