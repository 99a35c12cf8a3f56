"""Limits of API keys by the calendar, and what was used with such keys."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

ADDED = ("tokens_per_day", "tokens_per_month", "spend_per_day", "spend_per_month")


def upgrade() -> None:
    for name in ADDED:
        op.add_column("api_keys", sa.Column(name, sa.BigInteger(), nullable=True))
    op.create_table(
        "key_usage",
        sa.Column("hour", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("key", sa.String(161), primary_key=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("charged", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("key_usage")
    for name in ADDED:
        op.drop_column("api_keys", name)
