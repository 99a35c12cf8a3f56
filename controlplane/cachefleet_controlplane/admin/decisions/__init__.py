"""Decisions of the past: searched, one by one, exported, and as they are made.

decision_presenters  records to answers
decision_query       what is asked for, as query parameters
decision_export      ``GET /admin/v1/decisions/export``: JSON lines
decision_schemas     answers about decisions
decision_routes      ``GET /admin/v1/decisions``, and one of them
decision_stream      ``GET /admin/v1/decisions/stream``: server-sent events
"""
