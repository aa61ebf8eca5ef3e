"""Text from outside, such as a group id, made fit for one line of a terminal or a log."""


def written_out(text: str) -> str:
    """Write out the characters that would not show, or that a terminal would obey; line ends are such."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
