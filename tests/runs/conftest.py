from tests.fitted_once import fitted_once

__all__ = ["fitted_once"]
