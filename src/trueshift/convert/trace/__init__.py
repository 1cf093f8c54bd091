"""A network to a graph: tracing on an example, and reading the calls of the graph."""
