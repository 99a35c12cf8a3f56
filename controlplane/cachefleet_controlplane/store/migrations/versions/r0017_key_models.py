"""The models that an API key may use."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("models", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("api_keys", "models")
