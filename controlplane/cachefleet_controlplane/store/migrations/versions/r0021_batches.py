"""Batches and the lines of those that are not over."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file", sa.String(64), nullable=False),
        sa.Column("window", sa.String(16), nullable=False),
        sa.Column("given", sa.JSON(), nullable=True),
        sa.Column("models", sa.JSON(), nullable=True),
        sa.Column("model", sa.String(512), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        *(sa.Column(name, sa.Float(53), nullable=False) for name in ("created", "expires", "deleted")),
        sa.Column("times", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("total", "completed", "failed")),
        sa.Column("errors", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.String(64), nullable=True) for name in ("output_file", "error_file", "holder")),
        sa.Column("held_until", sa.Float(53), nullable=False),
    )
    op.create_index("ix_batches_tenant_created", "batches", ["tenant", "created"])
    op.create_index("ix_batches_status", "batches", ["status"])
    op.create_index("ix_batches_deleted", "batches", ["deleted"])
    _lines()


def _lines() -> None:
    op.create_table(
        "batch_lines",
        sa.Column("batch", sa.String(64), sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
    )
    op.create_index("ix_batch_lines_place", "batch_lines", ["batch", "place"])


def downgrade() -> None:
    op.drop_table("batch_lines")
    op.drop_table("batches")
