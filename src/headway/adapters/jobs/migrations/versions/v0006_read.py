"""Outputs tell how their prompt was read."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("job_outputs", sa.Column("read", sa.LargeBinary))
