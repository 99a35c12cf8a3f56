"""Memoised tokenisation with exact ids in vLLM's renderers, and safe boundaries of a rendered chat.

added_tokens          added tokens, and at which of them a text may be cut
background_tokenizer  a thread for preparing tokenizers and checking samples
boundaries            positions in a rendered chat at which a prefix may end
chunks                where a long part without added tokens may be cut
hook_installation     puts the feature into this process
encoding_plan         whether and how a tokenizer's texts can be encoded in parts
renderer              the hook in vLLM's renderers
render_salts          the salt of a text, on its way to the thread that encodes it
segments              encodes a text part by part
short_renders         what is short is rendered on the event loop
exactness_check       compares part-wise with whole encoding, on adversarial texts
splitter              splits a text at its cut tokens
token_cache           ids of parts seen before, bounded and separate for each salt
cached_encoder        the feature in one process: tokenizers, counters, samples
tokenizer             what a transformers tokenizer must be like; its message marks
"""
