"""Which object storage keeps the content of files."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("storage", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("files", "storage")
