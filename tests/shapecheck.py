"""The type checker that the tests put around every function of `tfbook`.

jaxtyping remembers the sizes that a call has shown, beartype compares them with the signature; that
costs more than most functions do. So only functions that name an array in their signature remember
sizes; of all others beartype checks the types. A checker is made when its function is first called,
and in a test that calls a function a thousand times (finite differences do) it looks at the first
calls and then at one in fifty.
"""

import collections
import dataclasses
import functools
import inspect
import typing

import beartype
import jaxtyping
from beartype.roar import BeartypeCallHintViolation

# As in Python's typing rules, an int is fine where a float is asked for.
check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped
# How often the running test has called each function; of so many calls all are looked at.
calls = collections.Counter()
ALL, ONE_IN = 10, 50


def install():
    """Let every module of `tfbook` that is imported from now on be checked while it runs."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("tfbook", "shapecheck.check")


def checked(fn=None, *, typechecker):
    """Check what a function gets and returns, as `jaxtyping.jaxtyped` does, but cheaper."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(fn):
        own = "__init__" in vars(fn)  # else it is a parent's, and checked there
        if dataclasses.is_dataclass(fn) and own and not hasattr(fn.__init__, "__wrapped__"):
            fn.__init__ = checked(fn.__init__, typechecker=typechecker)
        return fn
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(checked(fn.__func__, typechecker=typechecker))
    if isinstance(fn, property):
        parts = (fn.fget, fn.fset, fn.fdel)
        return property(*(part and checked(part, typechecker=typechecker) for part in parts))
    if not fn.__annotations__:
        return fn
    key = (fn.__module__, fn.__qualname__)
    typed = None

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        nonlocal typed
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        calls[key] = count = calls[key] + 1
        if count > ALL and (count - ALL) % ONE_IN:
            return fn(*args, **kwargs)
        if typed is None:
            typed = _with_shapes(fn) if names_an_array(fn) else typechecker(fn)
        return typed(*args, **kwargs)

    return wrapped


def _with_shapes(fn):
    if inspect.isgeneratorfunction(fn):  # its body runs when the sizes are forgotten
        return _jaxtyped(fn, typechecker=check)
    typed = check(fn)

    def remembering(*args, **kwargs):
        with _jaxtyped("context"):
            try:
                return typed(*args, **kwargs)
            except BeartypeCallHintViolation as violation:
                raise jaxtyping.TypeCheckError(str(violation)) from violation

    return remembering


def names_an_array(fn):
    """Return whether an annotation of a function has a shape in it, or can't be read."""
    try:
        hints = inspect.get_annotations(fn, eval_str=True).values()
    except Exception:
        return True
    return any(map(_has_shape, hints))


def _has_shape(hint):
    if isinstance(hint, type) and hasattr(hint, "dim_str"):
        return True
    return any(map(_has_shape, typing.get_args(hint)))
