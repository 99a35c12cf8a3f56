"""What the agent asks of an inference engine. Each engine has a folder of its own here, which implements that.

Nothing outside of an engine's folder knows its routes, its metrics' names or its messages; wiring alone imports it.

engine           the Protocol of an engine, and of one process of it
engine_errors    how a request to an engine can fail
engine_facts     what identifies an engine process, and what it can do
engine_poll      load, suspensions and statistics of one moment
prompt_run       result of a prompt run for its cache
tls              how an engine that serves TLS is verified
"""
