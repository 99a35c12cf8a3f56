"""Turns of conversations: what is kept of one, and how the next one continues it.

checkpoint             what is kept of a finished turn
converse_layer         the entry: begins the turn of a request, and counts what became of it
conversation_metrics   Prometheus metrics of continued conversations
encryption             stored conversations under a key for each tenant
retention              what the pools of a model allow to keep
records                encrypted responses, certificates and finished turns
rehydration            previous_response_id: the whole input from stored and new items
checkpoint_repository  all of it in SQL
response_histories     stored responses: continued, shown, deleted
sessions               names and states of conversations
turn                   one turn, from its checkpoint to the next
turn_plan              whether the prompt begins with what was remembered
turns                  begins, plans and commits turns
certification/         whether a render profile keeps what continuing needs
"""
