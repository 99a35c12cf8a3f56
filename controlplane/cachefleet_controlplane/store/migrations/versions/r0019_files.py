"""Files of tenants, in encrypted parts."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
    )
    op.create_index("ix_files_tenant_created", "files", ["tenant", "created"])
    op.create_index("ix_files_expires", "files", ["expires"])
    op.create_table(
        "file_parts",
        sa.Column("file", sa.String(64), sa.ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("file_parts")
    op.drop_table("files")
