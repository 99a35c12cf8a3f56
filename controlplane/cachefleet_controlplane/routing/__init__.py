"""The routing decision as a pure function: the cost of a prompt on each worker, capacity, throughput, reasons.

adapter_loading   what it costs to put an adapter in the place of another on a device
affinity          prefers a conversation's last worker among equally good ones
cache_shortfall   why an engine served less from its cache than predicted
capacity          how many blocks of a worker a request may take
cost              what a request costs on one worker, itself and others
decision          the values: prompt, candidate, score, decision; verdicts and reasons
hit_trust         how far a worker's claims are counted on, by what it has served
later_scores      scores that are computed when they are looked at
lost_tokens       why prompt tokens were not served from cache: tokens by cause, of one request
prompt_blocks     blocks of a prompt, and what is cached of them on one candidate
reason_texts      reasons and causes as sentences
reservations      blocks that requests in flight will fill on one worker
scoring           every candidate's score, and the choice of a worker
throughput        prefill rate and latency assumed of each worker
told_reason       the reason of a decision as it is told
worth             what work and evictions on a worker cost others
"""
