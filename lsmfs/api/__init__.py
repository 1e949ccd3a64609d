"""The REST API under /api/v1, as lakeFS's clients speak it, and operations of our own where they have none.

Every operation is a row of a table (`operations`): its method and path, the `Action` it needs, what it takes and gives.
`app` finds the row, identifies the caller, checks the action in one place and calls the handler.
"""
