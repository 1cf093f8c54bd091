"""A plan to a network: the new graph, its order, and the module that runs it."""
