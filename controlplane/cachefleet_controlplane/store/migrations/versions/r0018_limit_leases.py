"""Limits of a minute that replicas share: their token buckets, and the replicas that there are."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limit_buckets",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("limited", sa.String(32), primary_key=True),
        sa.Column("most", sa.BigInteger(), nullable=False),
        sa.Column("free", sa.Float(53), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("held", sa.Text(), nullable=False),
    )
    op.create_table(
        "replicas",
        sa.Column("replica", sa.String(32), primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("replicas")
    op.drop_table("limit_buckets")
