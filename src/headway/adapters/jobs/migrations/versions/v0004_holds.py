"""The queue of a model, or of all, may be held."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "queue_holds",
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("running", sa.String(16), nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
    )
