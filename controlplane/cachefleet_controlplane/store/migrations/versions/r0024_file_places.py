"""Where the content of files is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("place", sa.String(16), nullable=False, server_default="database"))


def downgrade() -> None:
    op.drop_column("files", "place")
