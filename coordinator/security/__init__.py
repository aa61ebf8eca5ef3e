"""Who may talk to us, and how that is kept private: TLS files that are reloaded, and principals.

Used by both listeners, that of Kafka's protocol and that of HTTP. Knows settings as values only.
"""
