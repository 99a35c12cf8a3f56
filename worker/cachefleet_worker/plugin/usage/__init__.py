"""What answers tell of their tokens.

message_start  the cached part of the prompt at the beginning of a messages stream
"""
