"""Arithmetic for agents: numbers, operators and a few functions, read by Python's parser and computed here."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from langchain_core.tools import tool

from descant.runtime.errors import DescantError

MAX_CHARS = 500
MAX_DEPTH = 250  # more than a sum of MAX_CHARS characters can have terms
MAX_BITS = 4096  # of a whole number: 1,233 digits
MAX_PLACES = 400  # that round() may be asked for

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"sqrt": math.sqrt, "round": round, "abs": abs, "min": min, "max": max}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})  # noqa: RUF001
_PIECE = re.compile(
    r"(?P<open>(?:[A-Za-z_]\w*\s*)?\()|(?P<close>\))|(?P<number>(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\w,]))"
)


class CalculationError(DescantError):
    """An expression that cannot be computed."""


@tool("Calculate")
def calculator(expression: str) -> str:
    """Compute an arithmetic expression: + - * / // % **, parentheses, sqrt, round, abs, min, max."""
    return show(calculate(expression))


def calculate(expression: str) -> Number:
    """The value of `expression`.

    Numbers may have thousands separators (1,234,567), except inside a function's parentheses, where a comma always
    separates arguments. Nothing can take long: length, depth and the size of every whole number are bounded.

    Raises:
        CalculationError: it is no arithmetic, is undefined, or goes beyond a bound.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression is longer than {MAX_CHARS} characters.")
    try:
        tree = ast.parse(_ungrouped(expression.translate(_SIGNS)).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise CalculationError(f"{expression.strip()!r} is no arithmetic expression.") from error
    try:
        return _value(tree.body, MAX_DEPTH)
    except ZeroDivisionError as error:
        raise CalculationError("division by zero.") from error
    except OverflowError as error:
        raise CalculationError("a number is too large.") from error


def show(number: Number) -> str:
    """A whole number in full, another with 15 digits, so that 0.1 + 0.2 is 0.3."""
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def _ungrouped(expression: str) -> str:
    """`expression` without thousands separators."""
    calls: list[bool] = []  # for each open parenthesis, whether it is a function's

    def piece(match: re.Match[str]) -> str:
        if match["open"]:
            calls.append(match["open"] != "(")
        elif match["close"] and calls:
            calls.pop()
        return match[0] if any(calls) or not match["number"] else match[0].replace(",", "")

    return _PIECE.sub(piece, expression)


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise CalculationError(f"the expression is nested more than {MAX_DEPTH} deep.")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, depth - 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(op, _value(left, depth - 1), _value(right, depth - 1))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_value(argument, depth - 1) for argument in arguments])
        case ast.BinOp(op=ast.BitXor()):
            raise CalculationError("^ is no operator: a power is written 2 ** 10.")
    raise CalculationError(f"only numbers, + - * / // % **, parentheses and {', '.join(_FUNCTIONS)} can be computed.")


def _binary(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        if abs(left) > 1 and right * (abs(left).bit_length() - 1) > MAX_BITS:
            raise OverflowError
    elif isinstance(op, ast.Pow) and left < 0 and not float(right).is_integer():
        raise CalculationError("a root of a negative number is not real.")
    return _bounded(_BINARY[type(op)](left, right))


def _call(name: str, arguments: list[Number]) -> Number:
    if name == "round" and len(arguments) == 2 and abs(arguments[1]) > MAX_PLACES:
        raise CalculationError(f"round takes at most {MAX_PLACES} places.")
    try:
        # min and max of one number are that number, not an error about iterating over it.
        return (
            arguments[0] if name in ("min", "max") and len(arguments) == 1 else _bounded(_FUNCTIONS[name](*arguments))
        )
    except TypeError as error:
        raise CalculationError(f"{name} does not take {len(arguments)} such arguments.") from error
    except ValueError as error:
        raise CalculationError(f"{name}({', '.join(map(show, arguments))}) is undefined.") from error


def _bounded(value: Any) -> Number:
    if (value.bit_length() > MAX_BITS) if isinstance(value, int) else not math.isfinite(value):
        raise OverflowError
    return value
