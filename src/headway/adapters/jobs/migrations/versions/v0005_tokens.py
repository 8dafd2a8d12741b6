"""Usage counts tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns."""
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        op.add_column("usage", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
