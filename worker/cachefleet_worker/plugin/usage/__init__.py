"""What answers tell of their tokens.

left_answers   counts of requests that are asked for by name: their clients have left
message_start  the cached part of the prompt at the beginning of a messages stream
"""
