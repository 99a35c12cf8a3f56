"""Limits of a tenant by the minute, day and month: requests, tokens, and spending in picos of the pools' currency."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ADDED = ("tokens_per_day", "tokens_per_month", "spend_per_day", "spend_per_month")


def upgrade() -> None:
    op.add_column("tenants", sa.Column("requests_per_minute", sa.Integer(), nullable=True))
    for name in ADDED:
        op.add_column("tenants", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("requests_per_minute", *ADDED):
        op.drop_column("tenants", name)
