"""Table of the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TEXTS = {"username": 512, "address": 64, "method": 16, "path": 512, "verb": 32, "resource": 128}


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        *(sa.Column(name, sa.String(length), nullable=False) for name, length in _TEXTS.items()),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("made", sa.String(512), nullable=False),
        sa.Column("change", sa.JSON(), nullable=True),
    )
    op.create_index("ix_audit_id", "audit", ["id"], unique=True)
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    op.drop_table("audit")
