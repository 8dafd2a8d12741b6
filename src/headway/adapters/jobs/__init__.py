"""The job table on SQLAlchemy Core: jobs, outputs, idempotency keys, usage and the webhook outbox. Imported lazily."""
