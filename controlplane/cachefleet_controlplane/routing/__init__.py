"""The values of a routing decision, and what it rests on: trust, worth, reasons.

affinity          prefers a conversation's last worker among equally good ones
cache_shortfall   why an engine served less from its cache than predicted
decision          the values: prompt, candidate, score, decision; verdicts and reasons
hit_trust         how far a worker's claims are counted on, by what it has served
later_scores      scores that are made of native ones when they are looked at
lost_tokens       why prompt tokens were not served from cache: tokens by cause, of one request
prompt_blocks     blocks of a prompt: those it needs, and those a hit can have
reason_texts      reasons and causes as sentences
specific_reason   the reason of a decision, more specific where the prompt says more than its scores
throughput        what is assumed of every worker
worth             what work and evictions on a worker cost others
"""
