"""Whether keys were made in a store, or somebody opened it to requests without one."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenancy", sa.Column("access", sa.String(16), nullable=False, server_default=""))
    op.execute("UPDATE tenancy SET access = 'keyed' WHERE EXISTS (SELECT 1 FROM api_keys)")


def downgrade() -> None:
    op.drop_column("tenancy", "access")
