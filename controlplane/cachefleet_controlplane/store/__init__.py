"""The database: decision records, tenants, API keys, usage. Losing it never stops routing.

access_marker         whether a store without API keys serves everybody, and the file beside it that outlives it
config_map_mark       the marker's copy in a ConfigMap, which outlives volumes and databases
database              SQLite or PostgreSQL: opening, migrating, transactions, recovery from corruption
audit_log             bounded queue in front of the audit log
audit_records         the record of one request that changes something
audit_repository      the audit log in SQL
decision_feed         decisions as they are made, for viewers
decision_filter       which decision records are asked for
decision_log          bounded queue of decision records in front of the repository
decision_records      the record of one decision, without prompts, token ids or secrets
decision_repository   decision records in SQL
newest_first          a page of records, of which some wait to be stored
sql_tenants           tenants and API keys in SQL
store_errors          errors of database drivers to StoreError
tenant_records        records of tenants, keys and usage
usage_log             usage summed in memory and written to SQL
content/              what is kept of prompts and answers
migrations/           Alembic migrations
schema/               tables
"""
