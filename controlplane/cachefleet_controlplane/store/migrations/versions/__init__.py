"""One Alembic migration per schema change, numbered in order."""
