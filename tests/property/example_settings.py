"""Numbers of examples that the Hypothesis profile scales."""

from hypothesis import settings


def example_settings(count: int, **more: int) -> settings:
    """Return settings with `count` examples, or a part of them if the active profile has fewer than 100."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), **more)
