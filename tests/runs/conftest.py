from tests.fitted_once import fitted_once, without_pollux

__all__ = ["fitted_once", "without_pollux"]
