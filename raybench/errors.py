"""Exceptions that raybench raises, besides bugs: both have one sentence that says what to do."""

from raybench.spec.errors import StudyError as StudyError
from raybench.spec.errors import UserError as UserError
