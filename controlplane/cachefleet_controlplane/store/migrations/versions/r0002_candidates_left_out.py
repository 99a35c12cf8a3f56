"""Number of a decision's candidates that are not stored."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("candidates_left_out", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("decisions", "candidates_left_out")
