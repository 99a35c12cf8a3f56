"""Conversations kept turn by turn, so that a request brings only what is new; vLLM still renders the whole.

answer_reference         adds to a completion's answer a reference to its prompt and answer together
conversation_body        what a body asks for, the whole that it becomes, and what is kept of it (pure)
conversation_middleware  puts requests together before vLLM sees them, and keeps them once they are rendered
exchange                 what is kept of one request and its answer, and the header that says so
turn                     one turn: what it added to the turn before, and what all turns of a conversation share (pure)
turn_store               the turns by handle, bounded in bytes, number and time
"""
