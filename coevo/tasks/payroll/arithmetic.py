"""The calculator of the standard world: sums, differences, products and quotients of decimal numbers, exact, without evaluating code."""

from __future__ import annotations

import re
from enum import StrEnum
from fractions import Fraction

__all__ = ["MAX_EXPRESSION_CHARS", "Rounding", "evaluate", "plain_number", "round_to"]

MAX_EXPRESSION_CHARS = 300
_MAX_DEPTH = 20
_TOKEN = re.compile(r"\s*(?:([0-9]{1,12}(?:\.[0-9]{1,6})?)|([-+*/()]))")


class Rounding(StrEnum):
    """How a sum becomes a multiple of the rounding step."""

    HALF_UP = "half_up"
    """To the nearest multiple, halves upwards."""
    DOWN = "down"
    """To the next lower multiple."""


def evaluate(expression: str) -> Fraction:
    """The exact value. Raises `ValueError` with the reason for anything that is not plain arithmetic."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"an expression is longer than {MAX_EXPRESSION_CHARS} characters")
    tokens, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("an expression has numbers, + - * / and parentheses only")
        tokens.append(match[1] or match[2])
        position = match.end()
    parser = _Parser(tokens)
    value = parser.sum(0)
    if parser.peek() is not None:
        raise ValueError("an expression does not end where it should")
    return value


class _Parser:
    """Recursive descent over tokens; a sum of products of signed atoms."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.peek() in ("+", "-"):
            value = value + self._product(depth) if self._take() == "+" else value - self._product(depth)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._atom(depth)
        while self.peek() in ("*", "/"):
            multiply, other = self._take() == "*", self._atom(depth)
            if not multiply and other == 0:
                raise ValueError("an expression divides by zero")
            value = value * other if multiply else value / other
        return value

    def _atom(self, depth: int) -> Fraction:
        if depth > _MAX_DEPTH:
            raise ValueError("an expression is nested too deeply")
        token = self._take()
        if token == "-":
            return -self._atom(depth + 1)
        if token == "(":
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if token is None or not token[0].isdigit():
            raise ValueError("an expression lacks a number")
        return Fraction(token)

    def _take(self) -> str | None:
        token = self.peek()
        self._next += 1
        return token


def round_to(value: Fraction, step: Fraction, mode: Rounding) -> Fraction:
    """`value` as a multiple of `step` (greater than 0)."""
    shifted = value / step + (Fraction(1, 2) if mode is Rounding.HALF_UP else 0)
    return (shifted.numerator // shifted.denominator) * step


def plain_number(value: Fraction) -> int | float:
    """What JSON shows: an int where exact, else a float of at most six decimals."""
    number = round(float(value), 6)
    return int(number) if number == int(number) else number
