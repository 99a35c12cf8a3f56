"""What is in a worker's answer, whole or as events: usage, token ids, errors and refusals. Pure.

answer               errors and events of an answer; takes out what only the gateway asked for
context_overflow     a prompt that is too long for its model, in vLLM's words and in those of the APIs
gate_refusals        whether a worker's gate refused the request
produced_tokens      token ids, text and finish reason of an answer so far
stream_count         tokens of a stream so far, where it ends before its usage
system_fingerprints  fingerprints of workers' answers, by worker URL
token_id_cutting     token ids cut out of an answer's JSON, or counted, without decoding it
usage                a worker's counts of tokens, held to what was possible
zero_cached_tokens   leaves counts of cached tokens that are 0 out of usage
"""
