"""Who may talk to us, where they come in, and how that is kept private: TLS files, reloaded, and principals.

Used by both listeners, that of Kafka's protocol and that of HTTP. Knows settings as values only.
"""
