"""A model's own settings, by the signature of its constructor."""

import pytest

from raybench.models.base import check_settings, known_settings
from raybench.spec.errors import UserError


class Net:
    def __init__(self, hidden_units=128, dropout=0.0, norm="batch", residual=False, depth=None):
        self.given = hidden_units, dropout, norm, residual, depth


class Needy:
    def __init__(self, hidden_units):
        self.hidden_units = hidden_units


class Open:
    def __init__(self, **given):
        self.given = given


def check(build, **given):
    check_settings(known_settings(build), given, build.__name__)


def test_a_constructor_says_what_can_be_set():
    known = known_settings(Net)
    assert known["hidden_units"] == 128
    assert list(known) == ["hidden_units", "dropout", "norm", "residual", "depth"]
    assert known_settings(Open) is None
    check(Net, hidden_units=64, dropout=1, norm="layer", residual=True, depth=3)
    check(Net)
    check(Needy, hidden_units=3)
    check(Open, anything=[1, 2])


@pytest.mark.parametrize(
    ("build", "given", "says"),
    [
        (Net, {"hiden_units": 3}, r"model.hiden_units: Net has no such .* mean 'hidden_units'\?"),
        (Net, {"hidden_units": 2.5}, "2.5 is not of the kind of Net's default, 128"),
        (Net, {"dropout": True}, "True is not of the kind"),
        (Needy, {}, "Needy needs model.hidden_units"),
        (object, {"x": 1}, "its constructor takes nothing"),
    ],
)
def test_what_cannot_be_set_is_one_sentence(build, given, says):
    with pytest.raises(UserError, match=says):
        check(build, **given)
