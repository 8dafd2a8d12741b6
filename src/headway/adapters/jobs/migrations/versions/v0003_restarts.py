"""A job that began anew says so."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("jobs", sa.Column("restarts", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("restart_reason", sa.Text))
