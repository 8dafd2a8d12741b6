"""Run by Alembic: migrates on the connection that `connect.upgrade` hands over, in one transaction."""

from alembic import context
from sqlalchemy import Connection

from headway.adapters.jobs.tables import metadata


def migrate() -> None:
    """Bring the schema to the newest version."""
    connection = context.config.attributes["connection"]
    assert isinstance(connection, Connection)
    is_sqlite = connection.dialect.name == "sqlite"  # it alters tables by copying them
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=is_sqlite)
    with context.begin_transaction():
        context.run_migrations()


migrate()
