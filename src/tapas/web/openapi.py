"""The description of the API: OpenAPI as JSON, and a page for people, both from the types."""

from html import escape
from typing import Any

import msgspec

from tapas.page import STYLE
from tapas.version import __version__
from tapas.web.schema import (
    Error,
    Health,
    ItemFacts,
    Recommend,
    Recommended,
    Similar,
    SimilarItems,
)

TYPES = (Recommend, Recommended, Similar, SimilarItems, ItemFacts, Health, Error)
ERRORS = {
    "400": "The request is not JSON.",
    "401": "The token is missing or wrong.",
    "404": "A user, item or model is unknown.",
    "413": "The request is too large.",
    "421": "The server was called by another name.",
    "422": "The request does not fit the schema.",
    "503": "The server is stopping, or has too much to do.",
}
EXAMPLE = """curl -s {address}/recommend{token} -d '{{"histories": [[KEY, KEY]], "k": 10}}'"""
TOKEN = " -H 'Authorization: Bearer TOKEN'"


def openapi() -> dict[str, Any]:
    """The API as OpenAPI 3.1."""
    (*_,), components = msgspec.json.schema_components(
        TYPES, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tapas",
            "version": __version__,
            "description": "Recommendations of trained models. All items are ranked, exactly, "
            "unless an answer says that it is approximate.",
        },
        "paths": {
            "/recommend": {"post": _post("Lists for users or histories", Recommend, Recommended)},
            "/similar": {"post": _post("Items with similar vectors", Similar, SimilarItems)},
            "/items/{key}": {
                "get": {
                    "summary": "What is known of an item",
                    "operationId": "item",
                    "parameters": [
                        _parameter("key", "path", "Key of the item.", required=True),
                        _parameter("model", "query", "Name of a model. Default: the first one."),
                    ],
                    "responses": _responses(ItemFacts),
                }
            },
            "/healthz": {
                "get": {
                    "summary": "Whether requests are answered",
                    "operationId": "health",
                    "security": [],
                    "responses": {
                        "200": _content("The server answers.", Health),
                        "503": _content("The server is stopping.", Health),
                    },
                }
            },
            "/metrics": {
                "get": {
                    "summary": "Counters, as Prometheus reads them",
                    "operationId": "metrics",
                    "responses": {
                        "200": {
                            "description": "Text of Prometheus.",
                            "content": {"text/plain": {"schema": {"type": "string"}}},
                        }
                    },
                }
            },
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _post(summary: str, body: type, answer: type) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": body.__name__.lower(),
        "description": (body.__doc__ or "").strip(),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(body)}},
        },
        "responses": _responses(answer),
    }


def _parameter(name: str, place: str, words: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": required,
        "description": words,
        "schema": {"type": "string"},
    }


def _responses(answer: type) -> dict[str, Any]:
    found = {"200": _content((answer.__doc__ or "").strip(), answer)}
    return found | {status: _content(words, Error) for status, words in ERRORS.items()}


def _content(words: str, answer: type) -> dict[str, Any]:
    schema = {"schema": _reference(answer)}
    return {"description": words, "content": {"application/json": schema}}


def _reference(found: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{found.__name__}"}


def docs_page(address: str, *, with_token: bool = False) -> str:
    """`openapi` for people, as HTML without scripts; the style is at /static/docs.css."""
    described = openapi()
    schemas = described["components"]["schemas"]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<title>API</title><link rel='icon' href='/static/favicon.svg'>",
        "<link rel='stylesheet' href='/static/docs.css'>",
        "<main><h1>API</h1>",
        f"<p>{escape(described['info']['description'])} JSON in, JSON out; the description for "
        "programs is <a href='/openapi.json'>openapi.json</a>, for people who look there is the "
        "<a href='/'>explorer</a>.</p>",
        f"<pre>{escape(EXAMPLE.format(address=address, token=TOKEN if with_token else ''))}</pre>",
    ]
    for path, verbs in described["paths"].items():
        for verb, each in verbs.items():
            parts.append(f"<h2><code>{verb.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(_words(each))}</p>")
            for parameter in each.get("parameters", []):
                place = "In the address" if parameter["in"] == "path" else "As a query"
                name, words = escape(parameter["name"]), escape(parameter["description"])
                parts.append(f"<p>{place}, <code>{name}</code>: {words}</p>")
            if "requestBody" in each:
                body = each["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                parts.append(_fields("It takes", schemas[body.rpartition("/")[2]]))
            answer = each["responses"]["200"]["content"].get("application/json")
            if answer is not None:
                name = answer["schema"]["$ref"].rpartition("/")[2]
                parts.append(f"<p>It answers with a <a href='#{name}'>{name}</a>.</p>")
    parts.append('<h2>Errors</h2><p>Each is <code>{"error": "one sentence"}</code>.</p><dl>')
    for status, words in ERRORS.items():
        parts.append(f"<dt><code>{status}</code></dt><dd>{escape(words)}</dd>")
    parts.append("</dl><h2>Answers</h2>")
    for name, schema in schemas.items():
        if name in ("Recommend", "Similar"):
            continue
        parts.append(f"<h3 id='{name}'>{name}</h3><p>{escape(schema.get('description', ''))}</p>")
        parts.append(_fields("", schema))
    return "".join([*parts, "</main></html>"])


def _words(each: dict[str, Any]) -> str:
    return f"{each['summary']}. {each.get('description', '')}".replace("`", "")


def _fields(words: str, schema: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_type_of(field)}</td>"
        f"<td>{escape(_description(field))}</td></tr>"
        for name, field in schema["properties"].items()
    ]
    return (
        f"<p>{escape(words)}</p><div class='wide words'><table><thead><tr><th>field</th>"
        f"<th>type</th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _description(field: dict[str, Any]) -> str:
    found = [str(each["description"]) for each in _choices(field) if "description" in each]
    return " ".join(found)


def _choices(field: dict[str, Any]) -> list[dict[str, Any]]:
    return [field, *field.get("anyOf", [])]


def _type_of(field: dict[str, Any]) -> str:
    """A type in words, as HTML."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type_of, field["anyOf"])))
    if "enum" in field:
        return " or ".join(f"<code>{escape(repr(each))}</code>" for each in field["enum"])
    kind = str(field.get("type", "anything"))
    if kind == "array":
        most = f", at most {field['maxItems']:,}" if "maxItems" in field else ""
        return f"list of ({_type_of(field['items'])}){most}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object of {_type_of(field['additionalProperties'])}"
    bounds = [f"{words} {field[name]:,}" for name, words in BOUNDS.items() if name in field]
    return escape(" ".join([kind, *bounds]))


BOUNDS = {"minimum": "from", "maximum": "to"}


def docs_style() -> str:
    return STYLE
