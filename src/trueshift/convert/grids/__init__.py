"""On which grid every tensor of a traced network lives, and what each operation must become."""
