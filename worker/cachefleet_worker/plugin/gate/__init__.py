"""The gate: refuses requests of which too little is cached, and hands back preempted ones.

gated_admission  the gate in one scheduler: judges, finishes and answers refused requests
finish_reason    the finish reason ``cache_threshold`` in vLLM's enums and streams
request_fields   the request field ``cache_hit_threshold``
rules            when a request is refused or handed back
scheduler_hooks  where vLLM's scheduler calls the gate
self_test        a test refusal in the real scheduler at startup
"""
