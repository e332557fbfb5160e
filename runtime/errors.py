"""The errors that a user is expected to meet."""


class DescantError(Exception):
    """Something a user can put right: the message is one sentence that says what, where, and the way out."""
