"""The API keys whose budgets batches count against."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("key", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("batches", "key")
