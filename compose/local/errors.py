"""The one exception of the launcher. Its text is for a person: what happened, and what to do."""


class StackError(Exception):
    """Something outside this program stands in the way; the message says what and the way on."""
