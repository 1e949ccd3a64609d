"""The LSM engine: Tables, Runs, the writer's memstore, the reader's view, and the merges between them."""
