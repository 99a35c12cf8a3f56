"""What is in a worker's answer, whole or as events: usage, token ids, errors and refusals. Pure.

answer               errors of an answer
context_overflow     a prompt that is too long for its model, in vLLM's words and in those of the APIs
gate_refusals        whether a worker's gate refused the request
produced_tokens      token ids, text and finish reason of an answer so far
stream_filter        a stream without what only the gateway asked for, and which events native code may relay
system_fingerprints  fingerprints of workers' answers, by worker URL
usage                a worker's counts of tokens, held to what was possible, and pools that omit counts of 0
"""
