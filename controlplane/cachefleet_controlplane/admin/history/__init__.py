"""What the caches did in the last hour, by the admin API: history, lost hits, hot prefixes, hit curves.

capacity_routes     GET /capacity: other budgets and numbers of workers, and advice
history_presenters  steps of the history and hot prefixes to schemas
history_routes      GET /history, /lost-hits and /prefixes
history_schemas     their answers
"""
