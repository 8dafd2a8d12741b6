"""What admission took away from a job is told to its client."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("degraded", sa.LargeBinary))
