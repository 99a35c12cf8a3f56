"""Memoised tokenisation with exact ids in vLLM's renderers, and safe boundaries of a rendered chat.

added          added tokens, and at which of them a text may be cut
background     a thread for preparing tokenizers and checking samples
boundaries     positions in a rendered chat at which a prefix may end
chunks         where a long part without added tokens may be cut
installation   puts the feature into this process
plan           whether and how a tokenizer's texts can be encoded in parts
renderer       the hook in vLLM's renderers
salts          the salt of a text, on its way to the thread that encodes it
segments       encodes a text part by part
selftest       compares part-wise with whole encoding, on adversarial texts
splitter       splits a text at its cut tokens
token_cache    ids of parts seen before, bounded and separate for each salt
token_memo     the feature in one process: tokenizers, counters, samples
tokenizer      what a transformers tokenizer must be like; its message marks
"""
