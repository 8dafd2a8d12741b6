"""The tiny models this repository trains for itself: the recipe and, beside it, the weights."""
