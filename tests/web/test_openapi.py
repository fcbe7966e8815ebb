"""The description of the API is valid, is what the server does, and has a page for people."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas.page import STYLE
from tapas.web.openapi import TYPES, docs_page, openapi
from tapas.web.schema import Recommend, Similar

jsonschema = pytest.importorskip("jsonschema")
METHODS = {"get", "post"}
TEXT = r"[^<>]*"


@pytest.fixture(scope="module")
def described(served):
    return served.get("/openapi.json").json()


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_the_description_has_what_openapi_3_1_asks_for(described):
    assert described == openapi()
    assert re.fullmatch(r"3\.1\.\d+", described["openapi"])
    assert {"title", "version"} <= described["info"].keys()
    names = []
    for path, verbs in described["paths"].items():
        assert path.startswith("/")
        assert verbs.keys() <= METHODS
        for operation in verbs.values():
            names.append(operation["operationId"])
            assert operation["summary"]
            for status, response in operation["responses"].items():
                assert re.fullmatch("[1-5][0-9][0-9]", status)
                assert response["description"]
            parameters = operation.get("parameters", [])
            assert set(re.findall("{(.*?)}", path)) == {
                each["name"] for each in parameters if each["in"] == "path"
            }
            assert all(each["required"] for each in parameters if each["in"] == "path")
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere_and_schemas_are_json_schemas(described):
    schemas = described["components"]["schemas"]
    found = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert found <= schemas.keys()
    assert {each.__name__ for each in TYPES} <= schemas.keys()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    for security in described["security"]:
        assert security.keys() <= described["components"]["securitySchemes"].keys()


def validator(described, path, method="post", status=None):
    """Checks JSON by the schema of a request, or of an answer with `status`."""
    operation = described["paths"][path][method]
    place = operation["requestBody"] if status is None else operation["responses"][str(status)]
    schema = place["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": described["components"]})


REQUESTS = (
    ("/recommend", {"histories": [[1000, "x"]], "k": 3, "explain": True, "deny": ["y"]}),
    ("/recommend", {"users": ["u1", "nobody"], "cold": "popular"}),
    ("/recommend", {"histories": [[1000]], "model": "warp"}),
    ("/recommend", {"histories": [[1000]], "model": "export"}),
    ("/recommend", {"histories": [[]]}),
    ("/recommend", {"histories": [[1000]], "k": 0}),
    ("/recommend", {"users": ["nobody"]}),
    ("/similar", {"items": [1000, 1001], "k": 2}),
    ("/similar", {"items": ["nothing"]}),
    ("/similar", {"item": ["nothing"]}),
)  # fmt: skip


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_answers_are_as_they_are_described(served, described, path, body):
    answer = served.post(path, **body)
    validator(described, path, status=answer.status_code).validate(answer.json())
    if answer.status_code == 200:
        validator(described, path).validate(body)


@pytest.mark.parametrize("path", ["/healthz", "/items/1000", "/items/nothing"])
def test_answers_to_get_are_as_they_are_described(served, described, path):
    answer = served.get(path)
    place = "/items/{key}" if path.startswith("/items") else path
    validator(described, place, "get", answer.status_code).validate(answer.json())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1100) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)
FIELDS = {
    "/recommend": dict.fromkeys(Recommend.__struct_fields__, JSON),
    "/similar": dict.fromkeys(Similar.__struct_fields__, JSON),
}


@pytest.mark.parametrize("path", FIELDS)
@given(data=st.data())
def test_what_the_schema_refuses_the_server_refuses_and_the_reverse(described, path, data):
    """422 is for what does not fit the schema; 3.0 is an integer by JSON Schema only."""
    body = data.draw(st.fixed_dictionaries({}, optional=FIELDS[path]))
    kind = Recommend if path == "/recommend" else Similar
    try:
        msgspec.json.decode(msgspec.json.encode(body), type=kind)
        fits = True
    except msgspec.ValidationError:
        fits = False
    if validator(described, path).is_valid(body):
        assert fits or any(isinstance(each, float) for each in leaves(body))
    else:
        assert not fits


def leaves(value):
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [leaf for each in inner for leaf in leaves(each)]
    return [value]


@pytest.fixture(scope="module")
def page(served):
    return served.get("/docs").text


def test_the_page_shows_every_address_field_and_status(page, described):
    for path, verbs in described["paths"].items():
        for verb in verbs:
            assert f"<h2><code>{verb.upper()} {path}</code></h2>" in page
    for schema in described["components"]["schemas"].values():
        for field in schema["properties"]:
            assert f"<td><code>{field}</code></td>" in page
    for status in ("400", "401", "404", "413", "421", "422", "503"):
        assert f"<dt><code>{status}</code></dt>" in page
    for words in ("integer from 1 to 1,000", "list of (string or integer), at most 10,000",
                  "'error'</code> or <code>'popular'"):  # fmt: skip
        assert words.replace("'", "&#x27;") in page or words in page


def test_the_page_asks_no_other_server_and_runs_no_script(page, served):
    links = set(re.findall(r"(?:src|href)='([^']*)'", page))
    inside = {link for link in links if link.startswith("#")}
    assert {"/static/docs.css", "/openapi.json", "/"} <= links
    assert all(re.match("/([^/]|$)", link) for link in links - inside)
    assert inside <= {f"#{name}" for name in re.findall("<h3 id='(.*?)'>", page)}
    assert "<script" not in page
    assert "style=" not in page
    assert re.findall(r"https?://[^/ <]*", page) == ["http://127.0.0.1:8321"]
    assert served.get("/static/docs.css").text == STYLE
    assert not re.findall(r"url\(\s*['\"]?(?!data:)", STYLE)
    assert "@import" not in STYLE


def test_the_page_is_well_formed(page):
    """Every element that is opened is closed, in order."""
    void, opened = {"meta", "link"}, []
    for closing, name in re.findall(r"<(/?)([a-z0-9]+)[^>]*>", page):
        if closing:
            assert opened.pop() == name
        elif name not in void:
            opened.append(name)
    assert opened == []


def test_the_address_in_the_example_is_escaped():
    assert "<b>" not in docs_page("http://<b>:1")
