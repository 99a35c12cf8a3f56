"""Flushing of workers' cached blocks: by model, pool, worker, tenant, or what begins with a given prompt.

flush_plan   which workers are asked, and for what; pure
flush_scope  what somebody names, checked against the pools, workers and tenants there are; pure
flusher      asks the workers at once, and adds up what they answer
"""
