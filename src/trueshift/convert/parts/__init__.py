"""The modules that a converted network consists of, besides those of the original."""
