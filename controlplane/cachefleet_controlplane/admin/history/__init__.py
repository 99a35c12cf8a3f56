"""What the caches did in the last hour, by the admin API: history, lost hits, hot prefixes.

history_presenters  steps of the history and hot prefixes to schemas
history_routes      GET /history, /lost-hits and /prefixes
history_schemas     their answers
"""
