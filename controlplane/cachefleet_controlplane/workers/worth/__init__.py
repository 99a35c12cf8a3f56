"""What work and evictions on a pool's workers cost others, as learnt from its requests and reports.

asked_blocks  how much of what workers evict is asked for again
paid_waiting  waiting for a prefix's holder, which pays for a copy
pool_worth    what a pool shows of what work and evictions cost others
"""
