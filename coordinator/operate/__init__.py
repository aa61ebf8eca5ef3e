"""What operators use: the HTTP API and page, expiry of abandoned state, and migration."""
