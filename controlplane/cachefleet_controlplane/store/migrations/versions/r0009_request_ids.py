"""A decision's request id, and indexes by which decisions are searched."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_decisions_tenant_seq": ["tenant", "seq"],
    "ix_decisions_request_id": ["request_id"],
    "ix_decisions_at": ["at"],
}


def upgrade() -> None:
    op.add_column("decisions", sa.Column("request_id", sa.String(128), nullable=True))
    for name, columns in _INDEXES.items():
        op.create_index(name, "decisions", columns)


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(name, "decisions")
    op.drop_column("decisions", "request_id")
