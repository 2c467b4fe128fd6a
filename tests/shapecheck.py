"""The type checker that the tests put around every function of `tfbook`.

jaxtyping binds the arguments of each call anew so that shapes can be compared with one another;
that costs more than most functions do. So only functions that name an array in their signature are
its own, and in a test that calls one of them a thousand times (finite differences do) it looks at
the first calls and then at one in ten. Of all other functions beartype checks the types.
"""

import collections
import dataclasses
import functools
import inspect
import typing

import beartype
import jaxtyping

# As in Python's typing rules, an int is fine where a float is asked for.
check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_with_shapes = jaxtyping.jaxtyped
# How often the running test has called each function; of so many calls all are looked at.
calls = collections.Counter()
ALL, ONE_IN = 50, 10


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
    shapes = names_an_array(fn)
    typed = (_with_shapes if shapes else _with_types)(fn, typechecker=typechecker)
    key = (fn.__module__, fn.__qualname__)

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if shapes:
            calls[key] += 1
            if calls[key] > ALL and calls[key] % ONE_IN:
                return fn(*args, **kwargs)
        return typed(*args, **kwargs)

    return wrapped


def _with_types(fn, *, typechecker):
    return typechecker(fn)


def names_an_array(fn):
    """Return whether an annotation of a function has a shape in it, or can't be read yet."""
    try:
        hints = inspect.get_annotations(fn, eval_str=True).values()
    except Exception:  # a name that its module defines further down
        return True
    return any(map(_has_shape, hints))


def _has_shape(hint):
    if isinstance(hint, type) and hasattr(hint, "dim_str"):
        return True
    return any(map(_has_shape, typing.get_args(hint)))
