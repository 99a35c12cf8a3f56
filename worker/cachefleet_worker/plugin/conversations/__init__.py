"""Conversations kept turn by turn, so that a request brings only what is new; vLLM still renders the whole.

conversation_body        what a body asks for, the whole that it becomes, and what is kept of it (pure)
conversation_middleware  puts requests together before vLLM sees them, and keeps them once they are rendered
turn                     one turn: what it added to the turn before, and what all turns of a conversation share (pure)
turn_store               the turns by handle, bounded in bytes, number and time
"""
