"""Who ended a decision's answer before it was whole."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("ended_by", sa.String(16), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "ended_by")
