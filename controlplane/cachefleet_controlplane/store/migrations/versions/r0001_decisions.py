"""Table of decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("pool", sa.String(512), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(256), nullable=False),
        sa.Column("worker", sa.String(1024), nullable=False),
        sa.Column("knowledge", sa.String(32), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("predicted_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("ttft_seconds", sa.Float(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("legs", sa.JSON(), nullable=False),
        sa.Column("candidates", sa.JSON(), nullable=False),
    )
    op.create_index("ix_decisions_id", "decisions", ["id"], unique=True)
    op.create_index("ix_decisions_model_seq", "decisions", ["model", "seq"])


def downgrade() -> None:
    op.drop_table("decisions")
