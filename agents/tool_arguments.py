"""From the one string of an action, `Name[argument]`, to a tool's typed parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.tools import Tool as StringTool
from langchain_core.utils.pydantic import model_json_schema

from descant.runtime.errors import DescantError

Schema = Mapping[str, Any]


class ArgumentError(DescantError):
    """An action's argument does not fit the tool's parameters."""


def usage(tool: BaseTool) -> str:
    """How an action calls the tool: its name and its required parameters, `Add[a, b]`."""
    return f"{tool.name}[{', '.join(_positional(_schema(tool)))}]"


def arguments(tool: BaseTool, text: str) -> dict[str, Any]:
    """The values for the tool's parameters that `text` gives, still to be validated by the tool.

    - A JSON object gives parameters by name, if the tool has more than one.
    - Otherwise the text gives the required parameters (the first one if none is required), in order, between commas;
      the last takes the rest, commas included. So `Search[Paris, Texas]` is one title for a tool with one required
      parameter, whatever else is optional.
    - A parameter that takes a string gets its text as it is. Another gets the JSON value that the text spells, or the
      text if it spells none, which the tool's own validation may still convert (a date, an enum, `True`).
    - A tool without parameters ignores the text.

    Raises:
        ArgumentError: a value is missing, or an object is not JSON.
    """
    text = text.strip()
    schema = _schema(tool)
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if len(properties) > 1 and text.startswith("{"):
        try:
            values: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{tool.name} was given an object that is not JSON: {error}.") from error
        return values
    names = _positional(schema)
    texts = [part.strip() for part in text.split(",", max(len(names) - 1, 0))]
    if len(texts) < len(names):
        raise ArgumentError(f"{tool.name} takes {len(names)} values, {usage(tool)}, but was given {len(texts)}.")
    return {name: _value(text, properties[name], schema) for name, text in zip(names, texts, strict=False)}


def _schema(tool: BaseTool) -> Schema:
    """The JSON schema of the tool's parameters, without those that LangChain fills in."""
    if isinstance(tool, StringTool):
        return {"properties": tool.args, "required": list(tool.args)}
    schema = tool.tool_call_schema
    return schema if isinstance(schema, dict) else model_json_schema(schema)


def _positional(schema: Schema) -> list[str]:
    names = list(schema.get("properties", {}))
    return [name for name in names if name in schema.get("required", ())] or names[:1]


def _value(text: str, parameter: Schema, schema: Schema) -> Any:
    if _takes_text(parameter, schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _takes_text(parameter: Schema, schema: Schema) -> bool:
    """Whether a string is among what `parameter`, a part of `schema`, accepts."""
    if reference := parameter.get("$ref"):
        return _takes_text(schema.get("$defs", {}).get(reference.rsplit("/", 1)[-1], {}), schema)
    for combined in ("anyOf", "oneOf", "allOf"):
        if combined in parameter:
            return any(_takes_text(part, schema) for part in parameter[combined])
    kinds = parameter.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)
