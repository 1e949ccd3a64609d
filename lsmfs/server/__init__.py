"""The server: one port for the S3 gateway and the REST API, its configuration, its worker processes."""
