"""Rows tell which attempts count as failures, so that each is forgiven once."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Failures of before are nobody's to forgive: who wrote them is gone."""
    op.add_column("jobs", sa.Column("counted", sa.Text, nullable=False, server_default=","))
