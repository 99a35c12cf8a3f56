"""Rename a decision's ``legs`` to ``attempts``."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE decisions RENAME COLUMN legs TO attempts")


def downgrade() -> None:
    op.execute("ALTER TABLE decisions RENAME COLUMN attempts TO legs")
