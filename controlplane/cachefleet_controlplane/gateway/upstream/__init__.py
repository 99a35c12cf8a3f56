"""The HTTP client of the workers, and what their answers and streams say.

answer               errors and events of an answer; takes out what only the gateway asked for
context_overflow     a prompt that is too long for its model, in vLLM's words and in those of the APIs
system_fingerprints  fingerprints of workers' answers, by worker URL
client               sends one attempt
aiohttp_sender       over aiohttp
native_sender        by native code
worker_answer        what it brings: a whole answer, or a stream with its first event
answer_budget        bytes of all whole answers that are held at once
credentials          the key that each worker accepts, by URL
held_answer          a request that a worker has rendered and holds
gate_refusals        whether a worker's gate refused the request
usage                a worker's counts of tokens, held to what was possible
outcome              outcomes of an attempt, and which count against the worker
stream_count         tokens of a stream so far, where it ends before its usage
produced_tokens      token ids, text and finish reason of an answer so far
worker_tls           how workers at https URLs are verified
zero_cached_tokens   leaves counts of cached tokens that are 0 out of usage
"""
