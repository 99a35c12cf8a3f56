"""The tables of the database as SQLModel classes; each change needs a migration.

audit_table           the audit log
batch_tables          files and batches of tenants
continuation_tables   conversations, checkpoints, responses, certificates
hour_ages             which rows by the hour are old enough to be deleted
judgement_tables      judged minutes, changes of pools' sizes
tables                decisions, tenants, API keys, usage
"""
