"""Adapters (LoRA): which one a block was made with, and what is loaded while the engine runs.

adapter_fetching   fetches what an adapter is loaded from while the engine runs
adapter_revisions  the revision of an adapter, in events of blocks made with it
"""
