"""The HTTP client of the workers, and what their answers and streams say.

client          sends one attempt, by native code, off the event loop
worker_call     one request by native code: its response, or the keys of a request that the worker holds
worker_answer   what it brings: a whole answer, or a stream with its first event
answer_budget   bytes of all whole answers that are held at once
credentials     the key that each worker accepts, by URL
outcome         outcomes of an attempt, and which count against the worker
worker_tls      how workers at https URLs are verified
answers/        what is in an answer's JSON: usage, token ids, errors, refusals
"""
