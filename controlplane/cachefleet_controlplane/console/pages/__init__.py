"""The console's views: each asks the admin API, as the visitor, and fills a template.

alert_page      what is wrong and what to do, and how much that is
capacity_page   hit curves, and what is worth doing by them
doc_page        a page of the documentation
fleet_page      pools and workers, live
flush_page      what would be evicted, then evicting it
history_data    the last hour as JSON, for charts
lost_hit_page   tokens that no cache served, by cause
pool_choice     the choice of a pool
prefix_page     the hottest prefixes
request_pages   finding requests, and one request with its decision
sign_in_pages   signing in with a token or a link, and out
tenant_limits   the form for a tenant's limits
tenant_pages    tenants with their usage and limits, and one tenant with its keys
usage_page      what was used and what it cost, by tenant, model or day
"""
