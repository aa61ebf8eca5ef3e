"""A small model of ownership, checked exhaustively."""
