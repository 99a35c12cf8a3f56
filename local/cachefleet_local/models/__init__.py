"""Small models with random weights, for machines without a model hub.

tiny_model      makes a model's files: weights, configuration, tokenizer
tiny_tokenizer  trains a byte-level BPE tokenizer
words           word list of tokenizer and demo
"""
