"""Losses against mpmath, and their derivatives against each other."""

import mpmath
import numpy as np
import pytest
from tests.oracles.rounding import of_difference, rounding

from tokenmargin.objective.losses import LOSSES, CorrelationLoss, CustomLoss, LogisticLoss, LogLoss

MP_LOSSES = {
    "logistic": lambda u: mpmath.log1p(mpmath.exp(-u)),
    "exponential": lambda u: mpmath.exp(-u),
    "correlation": lambda u: -u,
}


@pytest.mark.parametrize(("name", "loss"), LOSSES)
@pytest.mark.parametrize("log_gap", [-2000.0, -40.0, -3.0, -1e-3, 0.0, 0.5, 2.0])
def test_log_excess_agrees_with_two_thousand_digits(name, loss, log_gap):
    with mpmath.workdps(2000):
        best = mpmath.mpf(0.7)
        gap = mpmath.exp(mpmath.mpf(log_gap))
        expected = float(mpmath.log(MP_LOSSES[name](best - gap) - MP_LOSSES[name](best)))
    # Rounding of the nodes and of ten terms, and of logarithms up to 2000.
    found = float(loss.log_excess(np.array(0.7), np.array(log_gap)))
    assert found == pytest.approx(expected, rel=rounding(2), abs=rounding(4 * 10))


@pytest.mark.parametrize("log_gap", [-2000.0, -41.0, -39.0, -3.0, -0.4])
def test_the_excess_of_a_probability_agrees_with_two_thousand_digits(log_gap):
    with mpmath.workdps(2000):
        best, gap = mpmath.mpf(0.7), mpmath.exp(mpmath.mpf(log_gap))
        expected = float(mpmath.log(mpmath.log(best) - mpmath.log(best - gap)))
    # 1 - gap / best is known to eps, and is 0.04 at the last.
    found = float(LogLoss().log_excess(np.array(0.7), np.array(log_gap)))
    assert found == pytest.approx(expected, rel=rounding(2), abs=rounding(4 / 0.04))


def test_nothing_left_of_a_probability_is_an_infinite_excess():
    assert LogLoss().log_excess(np.array(1.0), np.array(0.0)) == np.inf


@pytest.mark.parametrize(("name", "loss"), LOSSES[:2])
@pytest.mark.parametrize("u", [-30.0, 0.0, 19.99, 20.01, 500.0])
def test_log_value_survives_underflow(name, loss, u):
    with mpmath.workdps(400):
        expected = float(mpmath.log(MP_LOSSES[name](mpmath.mpf(u))))
    assert float(loss.log_value(np.array(u))) == pytest.approx(expected, rel=rounding(8), abs=0)


def test_a_loss_without_sign_has_no_logarithm():
    with pytest.raises(ValueError, match="CorrelationLoss is not positive"):
        CorrelationLoss().log_value(np.array([1.0]))


@pytest.mark.parametrize(("name", "loss"), LOSSES)
def test_log_slope_derivative_is_the_derivative(name, loss):
    u, h = np.linspace(-3, 3, 13), 1e-6
    expected = (loss.log_slope(u + h) - loss.log_slope(u - h)) / (2 * h)
    # Logarithms up to 4 at points rounded to 3 eps, and third derivatives of at most 1.
    np.testing.assert_allclose(loss.log_slope_derivative(u), expected, rtol=0, atol=of_difference(h, 4.0, 1.0, 4))


def test_custom_loss_bends_with_or_without_a_second_derivative():
    logistic, u = LogisticLoss(), np.linspace(-4, 4, 9)
    given = CustomLoss(logistic.value, lambda u: -1 / (1 + np.exp(u)), second=lambda u: 1 / (2 + 2 * np.cosh(u)))
    plain = CustomLoss(given.function, given.derivative)
    np.testing.assert_allclose(
        given.log_slope_derivative(u), logistic.log_slope_derivative(u), rtol=rounding(8 + 4 * 4)
    )
    # A central difference at the step eps^(1/3), of logarithms up to 4.
    apart = of_difference(np.finfo(float).eps ** (1 / 3), 4.0, 1.0, 4)
    np.testing.assert_allclose(plain.log_slope_derivative(u), logistic.log_slope_derivative(u), rtol=0, atol=apart)


def test_a_derivative_of_another_function_is_refused() -> None:
    for wrong in (lambda u: np.exp(-u), lambda u: -2 * np.exp(-u), lambda u: -np.exp(u)):
        with pytest.raises(
            ValueError, match=r"the derivative is not that of the function: .* where its differences tell"
        ):
            CustomLoss(lambda u: np.exp(-u), wrong)


@pytest.mark.parametrize(
    ("function", "derivative"),
    [
        (lambda u: -np.log(u), lambda u: -1 / u),  # no numbers for u < 0
        (lambda u: np.exp(-np.float32(u)), lambda u: -np.exp(-np.float32(u))),
        (lambda u: -u, lambda u: -1.0),
        (lambda u: 1e-200 * np.exp(-u), lambda u: -1e-200 * np.exp(-u)),
        (lambda u: np.exp(-100 * u), lambda u: -100 * np.exp(-100 * u)),
        (lambda u: 1e9 - u, lambda u: -1.0),
    ],
)
def test_what_differences_cannot_tell_is_not_refused(function, derivative) -> None:
    assert CustomLoss(function, derivative).function is function


@pytest.mark.filterwarnings("error")
def test_constants_far_out_are_no_overflow() -> None:
    slope, steepest = LogisticLoss().constants(1e4, 1e5)  # the slope bends by e^-u / (1 + e^-u)^2: nothing out there
    assert (slope, steepest) == (0.0, 0.0)
    assert LogisticLoss().constants(-1e5, -1e4) == (0.0, 1.0)
    assert LogisticLoss().constants(-1.0, 2.0)[0] == 0.25
