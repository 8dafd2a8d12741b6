"""What can go wrong with a model on disk or on its way there."""


class ModelError(Exception):
    """A model that cannot be found, fetched, read or trusted; the message names it and what to do."""
