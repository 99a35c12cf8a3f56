"""Hot prefixes: beginnings of prompts that several requests shared lately, and caching them on new workers.

new_worker_warmup   tells new workers which hot prefixes to cache, within their budget
tracker             which prefixes are hot, by block keys; keeps their token ids
"""
