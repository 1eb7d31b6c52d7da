"""The one error class that means: the user can fix this."""


class UserError(ValueError):
    """The user's input is wrong; the message is one sentence that says what to do.

    Commands print it without a traceback and exit with code 2.
    """


class StudyError(Exception):
    """The study cannot go on, and the user's input is not the reason; one sentence.

    Commands print it without a traceback and exit with code 1.
    """
