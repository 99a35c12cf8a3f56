"""How long a request waited for room."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("queued_seconds", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "queued_seconds")
