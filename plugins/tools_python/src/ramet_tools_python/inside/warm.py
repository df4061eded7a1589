"""First use of the libraries that most programs use, before any program: caches are filled and lazy imports made.

A forked process has them from the start. Whatever goes wrong here only costs time later.
"""

from __future__ import annotations

import contextlib

COMMON = ("numpy", "sympy")
_PROGRAMS = {
    "numpy": """
import numpy as n
n.linalg.solve(n.eye(3) * 2, n.ones(3)); n.linalg.det(n.eye(3)); n.random.default_rng(0); str(n.arange(3.0))
""",
    "sympy": """
import sympy as s
x, y = s.symbols("x y")
str(s.expand((x + y) ** 5)); s.factor(x**2 - 1); s.solve(x**2 + x - 6, x); s.simplify(s.sin(x) ** 2 + s.cos(x) ** 2)
s.diff(s.exp(x) * x, x); s.integrate(x**2, (x, 0, 3)); s.integrate(s.sin(x) * x, x); s.limit(s.sin(x) / x, x, 0)
s.Matrix([[1, 2], [3, 4]]).det(); s.N(s.pi, 20); s.Rational(1, 3) + s.sqrt(8); s.factorint(360); s.isprime(97)
s.solve([x + y - 3, x - y - 1], [x, y]); s.latex(s.sqrt(x) / 2); s.series(s.exp(x), x, 0, 4); s.sympify("x**2 + 1/2")
""",
}


def use(modules: list[str]) -> None:
    """Run a typical program of each of these that is known."""
    for name in modules:
        with contextlib.suppress(Exception):
            exec(_PROGRAMS.get(name, ""), {})
