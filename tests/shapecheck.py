"""The type checker that the tests put around every function of `tfbook`.

jaxtyping binds the arguments of each call anew so that shapes can be compared with one another;
that costs more than most functions do. So only functions that name an array in their signature are
its own; of all others beartype checks the types.
"""

import dataclasses
import functools
import inspect
import typing

import beartype
import jaxtyping

# As in Python's typing rules, an int is fine where a float is asked for.
check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_with_shapes = jaxtyping.jaxtyped


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
    if names_an_array(fn):
        return _with_shapes(fn, typechecker=typechecker)
    typed = typechecker(fn)

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        return (fn if jaxtyping.config.jaxtyping_disable else typed)(*args, **kwargs)

    return wrapped


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
