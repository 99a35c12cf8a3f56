"""The fleet as it is now: rows for people, rendered once for all who watch.

fleet_rows   what is shown of pools and workers, and why a worker is left out; pure
live_fleet   rows with the version in which they changed last, made at most once a tick
token_rates  tokens saved and computed a second, from engines' counters
"""
