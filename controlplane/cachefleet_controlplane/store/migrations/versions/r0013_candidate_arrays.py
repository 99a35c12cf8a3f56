"""A decision's candidates as arrays of their values, which are a quarter as long as objects."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("scores", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "scores")
