"""The whole fleet on one screen.

keyboard  single keys of a terminal
status    ``cachefleet status``: what is wrong, and what to do
top       ``cachefleet top``: pools and workers, live
top_view  the tables of ``top``
"""
