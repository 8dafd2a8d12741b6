"""Objects of jobs in a folder or an S3-compatible store, through obstore. Imported lazily."""
