"""Streams that another worker goes on with (core/cachefleet_core/engine/answer_replay.py).

engine_outputs     what the engine gave for one answer: recorded, and put before what it gives next
recorded_answer    one answer that is recorded: its names, its times, the parts of its record
replay_hooks       the hooks in vLLM's engine client, output processor and names
replay_middleware  takes a record out of a request's body, and puts one into its stream
restored_outputs   what was produced elsewhere, as output of this engine: for penalties and grammars
token_logprobs     log probabilities in a record
"""
