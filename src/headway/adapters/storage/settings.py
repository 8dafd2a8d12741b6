"""Where objects lie. Credentials come from the environment (`AWS_ACCESS_KEY_ID`, ...), never from the file."""

import msgspec


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pictures, videos, previews and checkpoints."""

    url: str = ""  # a folder, or s3://BUCKET/PREFIX; empty: `objects` beside the job table
    endpoint: str | None = None  # of an S3-compatible server that is not Amazon's
    region: str | None = None  # of the bucket; unset: the environment's
    allow_http: bool = False  # an endpoint without TLS
