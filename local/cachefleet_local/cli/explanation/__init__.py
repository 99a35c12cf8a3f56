"""``cachefleet explain``.

bars     quantities as bars of characters
explain  one decision in words, bars and a table
"""
