"""The response token cache: what a turn of a conversation leaves for the next one.

``checkpoint``, ``plan``, ``outcome`` and ``sessions`` are pure; ``book`` is the way to the store, ``turns`` ties them
to a request. No token id is kept after the request that it belongs to.
"""
