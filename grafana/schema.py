"""Checks a dashboard against Grafana's schema with PyPI's grafana-foundation-sdk.

The package's models are generated from Grafana's schema. They silently drop unknown fields, and accept any value. So the check
converts a dashboard to the models and back: every field must survive, and each value must have the type that the model declares.
"""

import enum
import json
import types
import typing

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

plugins.register_default_plugins()


def findings(board):
    """The faults of a dashboard, each with its place."""
    try:
        model = dashboard.Dashboard.from_json(board)
    except (KeyError, TypeError, ValueError) as error:
        return [f"cannot be read: {error!r}"]
    back = json.loads(json.dumps(model, cls=JSONEncoder))
    return list(_dropped(board, back, "")) + list(_mistyped(model, dashboard.Dashboard, ""))


def _dropped(ours, theirs, place):
    """Fields that the conversion drops or changes."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from _dropped(value, theirs[key], f"{place}.{key}")
            elif value is not None:
                # A field without a value may be left out.
                yield f"{place}.{key}: unknown to Grafana's schema"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs)):
            yield from _dropped(one, other, f"{place}[{number}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} came back as {theirs!r}"


def _mistyped(value, hint, place):
    """Values that do not have the type that the model declares."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        tries = [list(_mistyped(value, argument, place)) for argument in arguments]
        if all(tries):
            # The type with the fewest findings is the intended one.
            scalar = isinstance(value, (str, int, float, type(None)))
            yield from [f"{place}: {value!r} is no {hint}"] if scalar else min(tries, key=len)
    elif origin is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _mistyped(item, arguments[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _mistyped(item, arguments[1], f"{place}.{key}")
    elif type(value).__module__.startswith("grafana_foundation_sdk.models"):
        for name, declared in typing.get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), declared, f"{place}.{name}")
    elif isinstance(value, dict) and hasattr(hint, "from_json"):
        # The models leave some parts unconverted.
        model = hint.from_json(value)
        back = json.loads(json.dumps(model, cls=JSONEncoder))
        yield from _dropped(value, back, place)
        yield from _mistyped(model, hint, place)
    elif not _is(value, hint, origin, arguments):
        yield f"{place}: {value!r} is no {hint}"


def _is(value, hint, origin, arguments):
    """Whether a value without parts has a type."""
    if hint in (object, typing.Any):
        return True
    if origin is typing.Literal:
        return value in arguments
    if hint is type(None):
        return value is None
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, (int, float))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    return isinstance(hint, type) and isinstance(value, hint)
