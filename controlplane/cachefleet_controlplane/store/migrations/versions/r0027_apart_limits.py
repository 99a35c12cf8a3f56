"""Limits of requests a day and month, of money a minute, and of uncached, cached and output tokens apart."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

APART = ("uncached_tokens", "cached_tokens", "output_tokens")
BUDGET = tuple(f"{unit}_per_{period}" for unit in ("requests", *APART) for period in ("day", "month"))
PER_MINUTE = tuple(f"{unit}_per_minute" for unit in (*APART, "spend"))
ADDED = {"tenants": (*PER_MINUTE, *BUDGET), "api_keys": BUDGET}
COUNTED = ("requests", "cached_tokens", "output_tokens")


def upgrade() -> None:
    for table, names in ADDED.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=True))
    for name in COUNTED:
        op.add_column("key_usage", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    _name_buckets(161)


def _name_buckets(length: int) -> None:
    """Have buckets named by tenants of 128 characters, or by keys, too."""
    with op.batch_alter_table("limit_buckets") as table:
        table.alter_column("tenant", type_=sa.String(length), existing_type=sa.String(), existing_nullable=False)


def downgrade() -> None:
    op.execute("DELETE FROM limit_buckets")
    _name_buckets(128)
    for name in COUNTED:
        op.drop_column("key_usage", name)
    for table, names in ADDED.items():
        for name in names:
            op.drop_column(table, name)
