"""Alembic's scripts, run at every start (`connect.upgrade`)."""
