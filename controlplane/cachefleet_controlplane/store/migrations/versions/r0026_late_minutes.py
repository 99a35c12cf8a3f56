"""When the database took judged minutes, so that replicas read what another one wrote late."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("judged_minutes", sa.Column("written", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_judged_minutes_written", "judged_minutes", ["written"])


def downgrade() -> None:
    op.drop_index("ix_judged_minutes_written", "judged_minutes")
    op.drop_column("judged_minutes", "written")
