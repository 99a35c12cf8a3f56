"""The values of a routing decision, and what it rests on: capacity, trust, worth, reasons.

adapter_loading   what it costs to put an adapter in the place of another on a device
affinity          prefers a conversation's last worker among equally good ones
cache_shortfall   why an engine served less from its cache than predicted
candidate_view    one worker as decisions see it, whatever the prompt
capacity          how many blocks of a worker a request may take
decision          the values: prompt, candidate, score, decision; verdicts and reasons
hit_trust         how far a worker's claims are counted on, by what it has served
later_scores      scores that are made of native ones when they are looked at
lost_tokens       why prompt tokens were not served from cache: tokens by cause, of one request
prompt_blocks     blocks of a prompt: those it needs, and those a hit can have
reason_texts      reasons and causes as sentences
reservations      blocks that requests in flight will fill on one worker
specific_reason   the reason of a decision, more specific where the prompt says more than its scores
throughput        prefill rate and batch assumed where nobody has measured them
worth             what work and evictions on a worker cost others
"""
