"""Why tokens of a decision's prompt were not served from cache."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("lost", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("decisions", "lost")
