"""The tables as queries see them. Migrations make them (`migrations/versions`); a test compares the two.

Times are nanoseconds since 1970 as 64-bit integers, which last until 2262.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata: Final = MetaData()

jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("tenant", String(255), nullable=False),
    Column("model", String(255), nullable=False),
    Column("state", String(16), nullable=False),
    Column("urgency", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),  # when it was stored, or a place between two others
    Column("stored_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger),
    Column("expires_ns", BigInteger),  # of its objects, and of a failed one's row
    Column("not_before_ns", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("counted", Text, nullable=False, server_default=","),  # the attempts that those are: `,2,5,`
    Column("steps", Integer, nullable=False),
    Column("done", Integer, nullable=False),  # for people
    Column("begun", Integer, nullable=False),  # in the checkpoint
    Column("checkpoint", Text),
    Column("device_ns", BigInteger, nullable=False),
    Column("estimate_ns", BigInteger, nullable=False),
    Column("owner", String(255)),
    Column("until_ns", BigInteger, nullable=False),
    Column("is_paused", Boolean, nullable=False),
    Column("has_begun", Boolean, nullable=False),  # a worker has done its first step
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("echo", LargeBinary, nullable=False),
    Column("webhook_url", Text),
    Column("degraded", LargeBinary),  # JSON object: what admission took away, and what is left
    Column("restarts", Integer, nullable=False, server_default="0"),  # its checkpoint could not be used so often
    Column("restart_reason", Text),  # of the last one
    Index("jobs_in_line", "state", "urgency", "position"),
    Index("jobs_of_tenant", "tenant", "kind", "stored_ns", "id"),
    Index("jobs_expiring", "expires_ns"),
)

# Apart from `jobs`: a row is rewritten with every heartbeat, its request may hold pictures.
inputs: Final = Table(
    "job_inputs",
    metadata,
    Column("job", String(64), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

outputs: Final = Table(
    "job_outputs",
    metadata,
    Column("job", String(64), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("media_type", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("seed", BigInteger),
    Column("key", Text, nullable=False),
    Column("read", LargeBinary),  # JSON object: tokens of the prompt, and what was cut off
)

evidence: Final = Table(
    "job_evidence",
    metadata,
    Column("job", String(64), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("record", LargeBinary, nullable=False),  # msgpack
)

holds: Final = Table(
    "queue_holds",
    metadata,
    Column("model", String(255), primary_key=True),  # `*`: every model's queue
    Column("running", String(16), nullable=False),  # what becomes of jobs that run: finish, checkpoint, stop
    Column("since_ns", BigInteger, nullable=False),
)

answers: Final = Table(
    "answers",
    metadata,
    Column("tenant", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("job", String(64)),  # the job that it made, or
    Column("answer", LargeBinary),  # the answer that was given; neither: somebody is at it until `until_ns`
    Column("owner", String(255)),
    Column("until_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Index("answers_expiring", "expires_ns"),
)

usage: Final = Table(
    "usage",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("tenant", String(255), primary_key=True),
    Column("model", String(255), primary_key=True),
    Column("device_ns", BigInteger, nullable=False),
    Column("images", BigInteger, nullable=False),
    Column("frames", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cached_tokens", BigInteger, nullable=False, server_default="0"),  # part of those
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
)

hooks: Final = Table(
    "hooks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("job", String(64), nullable=False),
    Column("tenant", String(255), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),  # waiting, delivered, dead
    Column("attempt", Integer, nullable=False),
    Column("stored_ns", BigInteger, nullable=False),
    Column("not_before_ns", BigInteger, nullable=False),
    Column("until_ns", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Index("hooks_due", "state", "not_before_ns"),
)
