"""How numbers are written."""

from __future__ import annotations


def percent(fraction: float) -> str:
    """Write a fraction in percent; only what is exactly 0 or 1 reads 0 % or 100 %.

    Examples:
        >>> percent(0.1234), percent(0.99999), percent(1.0), percent(0.00001)
        ('12.3 %', '> 99.9 %', '100 %', '< 0.1 %')
    """
    if fraction in (0, 1):
        return f"{100 * fraction:.0f} %"
    if fraction > 0.9995:
        return "> 99.9 %"
    if fraction < 0.0005:
        return "< 0.1 %"
    return f"{100 * fraction:.1f} %"


def number(value: float) -> str:
    """Write a number shortly.

    Examples:
        >>> number(0.0), number(0.123456), number(1234567.0), number(2.5e-7)
        ('0', '0.123', '1.23e+06', '2.5e-07')
    """
    return f"{value:.3g}"
