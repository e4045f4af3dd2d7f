"""The HTTP API of the coordinator: application, middleware, handlers, credentials."""
