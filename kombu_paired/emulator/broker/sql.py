"""The SQL of subscription rules, as far as rules mostly go: comparisons, AND, OR, NOT, IN, LIKE, IS NULL, EXISTS. Pure.

A comparison with a property that a message does not have is neither true nor false, as in the service; a rule lets
through what is true. Arithmetic, parameters and functions are not known.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from kombu_paired.emulator.broker.errors import Condition, Refusal

__all__ = ("Lookup", "Truth", "compile_filter")

#: The value of a property by its scope, ``sys`` or ``user``, and its name in lower case; None: there is none.
Lookup = Callable[[str, str], Any]
Truth = bool | None
_Test = Callable[[Lookup], Truth]
_Value = Callable[[Lookup], Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|'(?P<text>(?:[^']|'')*)'|\[(?P<bracketed>(?:[^\]]|\]\])+)\]"""
    r"""|"(?P<quoted>(?:[^"]|"")+)"|(?P<word>[A-Za-z_$][\w$-]*)|(?P<sign><=|>=|<>|!=|[=<>(),.-]))"""
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_filter(expression: str) -> _Test:
    """What an expression says of a message.

    Raises:
        Refusal: it is none, or more than is known here.
    """
    return _Parser(expression).whole()


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refusal(expression, f"at {text[position:].strip()!r}")
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        position = match.end()
    return found


def _refusal(expression: str, what: str) -> Refusal:
    return Refusal(Condition.NOT_IMPLEMENTED, f"the emulator does not understand the SQL {expression!r} {what}")


class _Parser:
    """From the loosest bond to the tightest: OR, AND, NOT, a comparison, a value."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._left = _tokens(expression)[::-1]

    def whole(self) -> _Test:
        test = self._either()
        if self._left:
            raise _refusal(self._expression, f"at {self._left[-1][1]!r}")
        return test

    def _either(self) -> _Test:
        tests = [self._both()]
        while self._takes("OR"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda lookup: _any([test(lookup) for test in tests])

    def _both(self) -> _Test:
        tests = [self._negated()]
        while self._takes("AND"):
            tests.append(self._negated())
        if len(tests) == 1:
            return tests[0]
        return lambda lookup: _not(_any([_not(test(lookup)) for test in tests]))

    def _negated(self) -> _Test:
        if self._takes("NOT"):
            test = self._negated()
            return lambda lookup: _not(test(lookup))
        if self._takes("("):
            test = self._either()
            self._need(")")
            return test
        if self._takes("EXISTS"):
            self._need("(")
            value = self._value()
            self._need(")")
            return lambda lookup: value(lookup) is not None
        return self._comparison()

    def _comparison(self) -> _Test:
        value = self._value()
        if self._takes("IS"):
            wanted = not self._takes("NOT")
            self._need("NULL")
            return lambda lookup: (value(lookup) is None) is wanted
        negated = self._takes("NOT")
        if self._takes("IN"):
            test = self._member(value)
        elif self._takes("LIKE"):
            test = self._like(value)
        elif not negated and self._left and self._left[-1][1] in _COMPARISONS:
            compare = _COMPARISONS[self._left.pop()[1]]
            other = self._value()
            return lambda lookup: _compared(compare, value(lookup), other(lookup))
        else:
            raise _refusal(self._expression, "that compares nothing")
        return (lambda lookup: _not(test(lookup))) if negated else test

    def _member(self, value: _Value) -> _Test:
        self._need("(")
        options = [self._value()]
        while self._takes(","):
            options.append(self._value())
        self._need(")")
        return lambda lookup: _any([_compared(operator.eq, value(lookup), each(lookup)) for each in options])

    def _like(self, value: _Value) -> _Test:
        kind, pattern = self._take()
        if kind != "text":
            raise _refusal(self._expression, f"at {pattern!r}")
        escape = self._take()[1] if self._takes("ESCAPE") else ""
        fits = re.compile(_pattern(pattern.replace("''", "'"), escape), re.DOTALL).fullmatch

        def test(lookup: Lookup) -> Truth:
            found = value(lookup)
            return None if found is None else isinstance(found, str) and fits(found) is not None

        return test

    def _value(self) -> _Value:
        kind, text = self._take()
        if kind == "text":
            return _constant(text.replace("''", "'"))
        if kind == "number" or text == "-":
            sign, digits = (-1, self._take()[1]) if text == "-" else (1, text)
            return _constant(sign * (float(digits) if "." in digits else int(digits)))
        if kind == "word" and text.upper() in ("TRUE", "FALSE"):
            return _constant(text.upper() == "TRUE")
        if kind not in ("word", "bracketed", "quoted"):
            raise _refusal(self._expression, f"at {text!r}")
        scope, name = "user", text
        if self._takes("."):
            scope, name = text.lower(), self._take()[1]
        return lambda lookup: lookup(scope, name.lower())

    def _take(self) -> tuple[str, str]:
        if not self._left:
            raise _refusal(self._expression, "that ends too early")
        return self._left.pop()

    def _takes(self, word: str) -> bool:
        there = bool(self._left) and self._left[-1][0] in ("word", "sign") and self._left[-1][1].upper() == word
        if there:
            self._left.pop()
        return there

    def _need(self, word: str) -> None:
        if not self._takes(word):
            raise _refusal(self._expression, f"that lacks {word}")


def _constant(value: Any) -> _Value:
    return lambda lookup: value


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _any(truths: list[Truth]) -> Truth:
    return True if True in truths else None if None in truths else False


def _compared(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> Truth:
    if one is None or other is None:
        return None
    if isinstance(one, str) != isinstance(other, str) or isinstance(one, bool) != isinstance(other, bool):
        return False
    return compare(one, other)


def _pattern(like: str, escape: str) -> str:
    """A pattern of LIKE, as a regular expression."""
    found, characters = "", iter(like)
    for character in characters:
        if escape and character == escape:
            found += re.escape(next(characters, ""))
        else:
            found += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return found
