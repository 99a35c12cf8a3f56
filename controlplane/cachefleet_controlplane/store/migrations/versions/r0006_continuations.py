"""Tables of conversations, checkpoints, responses and certificates; a decision's continuation."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("continuation", sa.String(64), nullable=True))
    _conversations()
    _checkpoints()
    _responses()
    _certificates()


def _conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("model", sa.String(512), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("head", sa.String(64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.UniqueConstraint("tenant", "model", "name", name="uq_conversations_name"),
    )
    op.create_index("ix_conversations_expires", "conversations", ["expires"])


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("conversation", sa.String(64), sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("parent", sa.String(64), nullable=True),
        sa.Column("response", sa.String(128), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("prefix_hash", sa.String(80), nullable=False),
        sa.Column("prefix_tokens", sa.Integer(), nullable=False),
        sa.Column("ends_at_boundary", sa.Boolean(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("keys", sa.LargeBinary(), nullable=False),
        sa.Column("contract", sa.String(80), nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("salt_version", sa.Integer(), nullable=True),
        sa.Column("fingerprints", sa.JSON(), nullable=False),
        sa.Column("worker", sa.String(1024), nullable=False),
        sa.Column("epoch", sa.String(256), nullable=False),
        sa.Column("handle", sa.String(256), nullable=True),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.UniqueConstraint("conversation", "seq", name="uq_checkpoints_seq"),
    )
    op.create_index("ix_checkpoints_response", "checkpoints", ["response"])


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("model", sa.String(512), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
    )
    op.create_index("ix_responses_expires", "responses", ["expires"])


def _certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("profile", sa.String(80), primary_key=True),
        sa.Column("contract", sa.String(80), primary_key=True),
        sa.Column("model", sa.String(512), nullable=False),
        sa.Column("certified", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(256), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    for table in ("certificates", "responses", "checkpoints", "conversations"):
        op.drop_table(table)
    op.drop_column("decisions", "continuation")
