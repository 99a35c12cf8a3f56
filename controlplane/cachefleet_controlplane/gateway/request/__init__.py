"""One request, completed from layer to layer, and the notes on what becomes of it.

request             Request: made as it arrives, replaced by each layer that learns more of it
decision_trace      notes on one request; its decision as headers, as a body, as a record
hit_thresholds      hit thresholds: the caller's and those of pools
rendered_prompt     a prompt's length and block keys, and what a worker has of it
replay_eligibility  which streams can be made again elsewhere, and why nobody can go on with an answer
resume_eligibility  which requests can be resumed, the mark of those, and the body for the rest
"""
