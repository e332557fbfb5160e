"""Arithmetic that is Python's, within bounds, and nothing but arithmetic."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from descant.agents.tool import call, usage
from descant.agents.tools.calculator import CalculationError, calculate, calculator, show


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * -4", "-20"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("2 ** 0.5 ** 2", "1.18920711500272"),
        ("0.1 + 0.2", "0.3"),
        ("1,234,567 + 1", "1234568"),
        ("1,234.5 * 2", "2469"),
        ("(1,000 + max(1,200)) * 2", "2400"),
        ("max(1,200) + 1,000", "1200"),
        ("min(3, 1, 2)", "1"),
        ("min(5)", "5"),
        ("round(2.567, 2)", "2.57"),
        ("round(2.5)", "2"),
        ("abs(-3)", "3"),
        ("sqrt(16)", "4"),
        ("6 × 7 − 2 ÷ 1", "40"),  # noqa: RUF001
        ("  1\n", "1"),
        ("2 ** 4095", str(2**4095)),
        ("1 ** (2 ** 4000)", "1"),
    ],
)
def test_a_value(expression: str, value: str) -> None:
    assert show(calculate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("5 % 0", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 10000", "too large"),
        ("(2 ** 4000) * (2 ** 4000)", "too large"),
        ("1e308 * 10", "too large"),
        ("1e999", "too large"),
        ("10.0 ** 400", "too large"),
        ("(2 ** 4000) / 3", "too large"),
        ("round(7, -1000000000)", "at most 400 places"),
        ("(-8) ** 0.5", "not real"),
        ("sqrt(-1)", "sqrt(-1) is undefined"),
        ("sqrt(1, 2)", "sqrt does not take 2"),
        ("round(1.5, 0.5)", "round does not take"),
        ("min()", "min does not take 0"),
        ("2 ^ 10", "written 2 ** 10"),
        ("-" * 400 + "1", "nested more than"),
        ("(" * 300 + "1" + ")" * 100, "no arithmetic expression"),
        ("1" * 501, "longer than 500"),
        ("", "no arithmetic expression"),
        ("2 +", "no arithmetic expression"),
        ("1 2", "no arithmetic expression"),
        ("0777", "no arithmetic expression"),
        ("1\x002", "no arithmetic expression"),
        *(
            (outside, "only numbers")
            for outside in (
                "12,34",
                "x",
                "True",
                "1j",
                "'a' * 9",
                "[1] * 9",
                "1 if 2 else 3",
                "1 < 2",
                "1 and 2",
                "~1",
                "1 << 9",
                "(lambda: 1)()",
                "__import__('os')",
                "sqrt.__class__",
                "sqrt(x=4)",
                "max(*(1, 2))",
                "pow(2, 3)",
                "f'{1}'",
                "(y := 1)",
            )
        ),
    ],
)
def test_what_cannot_be_computed_is_one_sentence(expression: str, words: str) -> None:
    with pytest.raises(CalculationError, match=r"\.$") as caught:
        calculate(expression)
    assert words in str(caught.value)
    seen = call(calculator, expression)
    assert not seen.ok
    assert words in seen.text


numbers = st.integers(0, 10**6).map(str) | st.floats(0, 1e6).map(lambda x: f"{x:.3f}")
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
        | st.tuples(st.sampled_from(["abs", "round"]), inner).map(lambda t: f"{t[0]}({t[1]})")
    ),
    max_leaves=12,
)


@given(expressions)
def test_a_value_is_pythons(expression: str) -> None:
    try:
        value = eval(expression)  # of our own making
    except ZeroDivisionError:
        with pytest.raises(CalculationError, match="division by zero"):
            calculate(expression)
        return
    assert calculate(expression) == value


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_thousands_separators_change_nothing(a: int, b: int) -> None:
    assert calculate(f"{a:,} - {b:,}") == a - b
    assert calculate(f"max({a}, {b}) + ({a:,})") == max(a, b) + a


symbols = st.sampled_from([*"0123456789.,+-*/%()eE _", "**", "//", "sqrt(", "max(", "round(", "9" * 20])


@given(st.lists(symbols | st.text(max_size=2), max_size=60).map("".join))
@example("9**" * 100 + "9")
@example("round(9,-400)" * 30)
def test_anything_else_is_a_number_or_one_error_and_never_takes_long(text: str) -> None:
    start = time.process_time()
    try:
        value = calculate(text)
        assert math.isfinite(value)
        assert show(value)
    except CalculationError:
        pass
    assert time.process_time() - start < 1


def test_an_agent_calculates() -> None:
    assert usage(calculator) == "Calculate[expression]"
    assert call(calculator, "1,001 * 3").text == "3003"
