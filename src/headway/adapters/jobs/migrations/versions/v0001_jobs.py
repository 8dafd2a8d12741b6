"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    _jobs()
    _of_jobs()
    _others()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("urgency", sa.Integer, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("stored_ns", sa.BigInteger, nullable=False),
        sa.Column("ended_ns", sa.BigInteger),
        sa.Column("expires_ns", sa.BigInteger),
        sa.Column("not_before_ns", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("begun", sa.Integer, nullable=False),
        sa.Column("checkpoint", sa.Text),
        sa.Column("device_ns", sa.BigInteger, nullable=False),
        sa.Column("estimate_ns", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(255)),
        sa.Column("until_ns", sa.BigInteger, nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("has_begun", sa.Boolean, nullable=False),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.Text),
        sa.Column("echo", sa.LargeBinary, nullable=False),
        sa.Column("webhook_url", sa.Text),
    )
    op.create_index("jobs_in_line", "jobs", ["state", "urgency", "position"])
    op.create_index("jobs_of_tenant", "jobs", ["tenant", "kind", "stored_ns", "id"])
    op.create_index("jobs_expiring", "jobs", ["expires_ns"])


def _of_jobs() -> None:
    op.create_table(
        "job_inputs",
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "job_outputs",
        sa.Column("job", sa.String(64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("media_type", sa.String(64), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("seed", sa.BigInteger),
        sa.Column("key", sa.Text, nullable=False),
    )
    op.create_table(
        "hooks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("stored_ns", sa.BigInteger, nullable=False),
        sa.Column("not_before_ns", sa.BigInteger, nullable=False),
        sa.Column("until_ns", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("hooks_due", "hooks", ["state", "not_before_ns"])


def _others() -> None:
    op.create_table(
        "answers",
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("job", sa.String(64)),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("owner", sa.String(255)),
        sa.Column("until_ns", sa.BigInteger, nullable=False),
        sa.Column("expires_ns", sa.BigInteger, nullable=False),
    )
    op.create_index("answers_expiring", "answers", ["expires_ns"])
    op.create_table(
        "usage",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("tenant", sa.String(255), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("device_ns", sa.BigInteger, nullable=False),
        sa.Column("images", sa.BigInteger, nullable=False),
        sa.Column("frames", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
    )
