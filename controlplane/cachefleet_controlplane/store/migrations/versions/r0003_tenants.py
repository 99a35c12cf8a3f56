"""Tables of tenants, API keys and usage."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _tenants()
    _usage()


def _tenants() -> None:
    tenancy = op.create_table(
        "tenancy",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("store", sa.String(32), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
    )
    # A name of its own tells a store that was made anew from one in which everything was deleted.
    op.bulk_insert(tenancy, [{"id": 1, "store": uuid.uuid4().hex, "revision": 0}])
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("salt_version", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("requests_at_once", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(128), sa.ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("hint", sa.String(16), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=True),
        sa.Column("revoked", sa.Float(53), nullable=True),
    )
    op.create_index("ix_api_keys_hash", "api_keys", ["hash"], unique=True)
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant"])


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("hour", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    for table in ("usage", "api_keys", "tenants", "tenancy"):
        op.drop_table(table)
