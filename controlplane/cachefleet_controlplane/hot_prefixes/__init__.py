"""Hot prefixes: beginnings of prompts that several requests shared lately, and caching them on new workers.

hot_prefix          values: bounds, and prefixes as others see them
leaving_workers     has workers that stay compute what a leaving one alone held for cache contracts
new_worker_warmup   tells new workers which hot prefixes to cache, within their budget
tracker             which prefixes are hot, by block keys; keeps their token ids
"""
