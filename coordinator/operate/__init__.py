"""The HTTP API and page, expiry of abandoned state, delivery histories, and migration."""
