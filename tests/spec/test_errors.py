import pickle

from raybench.spec.errors import UserError


def test_a_message_is_one_printable_line():
    error = UserError("a\nb\t\x1b[31m \udce9 größer")
    assert str(error) == "a b \\x1b[31m \\udce9 größer"
    assert str(error).isprintable()


def test_details_cross_processes_and_need_not_be_there():
    error = pickle.loads(pickle.dumps(UserError("short", details="long\ntext")))
    assert (str(error), error.details) == ("short", "long\ntext")
    assert UserError("short").details is None
