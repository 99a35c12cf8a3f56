"""The weight of a tenant's share among those that wait."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("weight", sa.Integer(), nullable=False, server_default="100"))


def downgrade() -> None:
    op.drop_column("tenants", "weight")
