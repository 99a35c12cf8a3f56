"""Minutes that were judged, of contracts and of advice, and pools' changes of size."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "judged_minutes",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("pool", sa.String(512), primary_key=True),
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("hour", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("reason", sa.String(32), primary_key=True),
        sa.Column("bits", sa.BigInteger(), nullable=False),
        sa.Column("evicted", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_judged_minutes_hour", "judged_minutes", ["hour"])
    op.create_table(
        "size_changes",
        sa.Column("pool", sa.String(512), primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("change", sa.JSON(), nullable=False),
    )
    op.create_index("ix_size_changes_at", "size_changes", ["at"])


def downgrade() -> None:
    op.drop_table("size_changes")
    op.drop_table("judged_minutes")
