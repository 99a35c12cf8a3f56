"""Sends a request to workers: which attempt comes next, its body, and one answer out of several workers' parts.

answer_latency       how long a worker usually takes, and from when on it is overdue
attempt_failures     what a client is told where no attempt gave an answer
attempt_plan         threshold, prefill and body of the next attempt
detokenizer          text of token ids by workers, and where characters end
gateway_context      what the exchanges of all requests share
exchange             the entry, the innermost layer: has workers answer one request, and relays what they send
prefill              an attempt to have a Prefill worker compute the prompt
retry_loop           attempts for one duty: choose, wait, send, as the table says
resume               resumes an interrupted answer on another worker
retry_state_machine  what to do after each outcome of an attempt, as a table
stalled_attempts     ends attempts that wait for a worker that has stopped answering
stop_strings         stop strings across two workers' texts
stream_replay        has another worker make a recorded stream again, and leaves out what the client has
stream_relay         relays a stream, in Python or by native code
stream_join          joins several workers' events into one answer
worker_choice        chooses a worker, and waits for room
"""
