"""What the caches did in the last hour, by the admin API: history, lost hits, hot prefixes, hit curves, contracts.

capacity_routes     GET /capacity: other budgets and numbers of workers, and advice
contract_routes     GET /contracts: tenants' cache contracts, met or not
history_presenters  steps of the history and hot prefixes to schemas
history_routes      GET /history, /lost-hits and /prefixes
history_schemas     their answers
"""
