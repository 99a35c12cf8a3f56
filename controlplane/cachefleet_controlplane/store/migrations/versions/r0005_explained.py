"""A decision's tenant, isolation, rung, render failure and shortfall."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TEXTS = {"tenant": 128, "isolation": 32, "rung": 32}


def upgrade() -> None:
    for name, length in _TEXTS.items():
        op.add_column("decisions", sa.Column(name, sa.String(length), nullable=False, server_default=""))
    op.add_column("decisions", sa.Column("salt_version", sa.Integer(), nullable=True))
    op.add_column("decisions", sa.Column("render_failure", sa.String(64), nullable=True))
    op.add_column("decisions", sa.Column("shortfall", sa.JSON(), nullable=True))


def downgrade() -> None:
    for name in ("shortfall", "render_failure", "salt_version", *_TEXTS):
        op.drop_column("decisions", name)
