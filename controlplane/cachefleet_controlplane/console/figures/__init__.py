"""What pages draw, from answers of the admin API: parts of bars and time lines. Pure.

bar_parts       values one behind the other, as parts of a bar
candidate_bars  what a request would have cost on each candidate: wait, prefill, others, eviction
lost_causes     what to do about tokens that were lost for a cause
request_legs    what a request waited for, on a time line
token_split     what became of each token of a prompt
"""
