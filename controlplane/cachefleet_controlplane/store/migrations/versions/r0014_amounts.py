"""What usage costs, and what caches saved of it, in picos of the pools' currency."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ADDED = ("recomputed_tokens", "charged", "saved", "wasted", "compute_saved", "compute_wasted")


def upgrade() -> None:
    for name in ADDED:
        op.add_column("usage", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ADDED:
        op.drop_column("usage", name)
