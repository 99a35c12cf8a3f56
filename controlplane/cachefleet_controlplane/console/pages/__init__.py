"""The console's views: each asks the admin API, as the visitor, and fills a template.

fleet_page     pools and workers, live
history_data   the last hour as JSON, for charts
sign_in_pages  signing in with a token or a link, and out
"""
