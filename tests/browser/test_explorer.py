"""The explorer of `tapas serve` in a real browser."""

import json

import pytest
from browser.chromium import DESKTOP, PHONE, history, item, user
from browser.conftest import EARLY, HARM, HOSTILE_ITEMS, HOSTILE_USERS, ITEMS, NUM_ITEMS

pytestmark = pytest.mark.slow
MIXTURE, NETWORK = "mixture", "<b>network"
LISTS = ".wide .side > section"  # one for each model
ENTER, DOWN, TAB, ESCAPE, BACKSPACE, RIGHT = (
    "\ue007",
    "\ue015",
    "\ue004",
    "\ue00c",
    "\ue003",
    "\ue014",
)
VIEWS = {
    "start": "#/",
    "user": user("u20"),
    "unknown user": user("nobody"),
    "item": item("item-10"),
    "empty history": "#/try/",
    "history": history("item-10", "item-17", "no such item"),
    "map": "#/map",
    "no view": "#/nowhere",
}
NOT_FOUND = "404 (Not Found)"


def judged_user(page) -> str:
    """A user for whom both models find an item that was taken next."""
    for number in range(10, 60):
        found = page.ask("user", key=f"u{number}")
        if all(each["hits"] for each in found["lists"]):
            return found["user"]
    raise AssertionError("no user has hits in both lists")


def lists(page) -> list[list[str]]:
    """The items of each model's list."""
    return [page.items(f"{LISTS}:nth-child({n})") for n in range(1, 1 + len(page.all(LISTS)))]


def test_a_user_is_found_by_the_beginning_of_the_key(page):
    page.open()
    page.field("User").send_keys("u2")
    found = page.suggestions("User")
    assert [each.partition(" ")[0][:2] for each in found] == ["u2"] * len(found)
    page.until(lambda: len(page.suggestions("User")) == 10, "u20 to u29 are suggested")
    page.field("User").send_keys("3", ENTER)  # the only one
    page.await_heading("User u23")
    assert page.driver.title == "User u23 · tapas"
    assert page.driver.current_url.endswith("#/user/u23")
    told = page.ask("user", key="u23")
    newest = [event["item"] for event in reversed(told["history"])]
    assert page.items(".last") == newest[: len(page.items(".last"))] != []


def test_a_random_user_is_opened(page):
    page.open()
    page.one("#search button").click()
    page.await_heading("User ")
    assert "/user/" in page.driver.current_url
    assert len(page.all(LISTS)) == 2


def test_hits_are_what_the_user_took_next(page):
    key = judged_user(page)
    page.open(user(key))
    taken = {event["item"] for event in page.ask("user", key=key)["next"]}
    assert set(page.items(".first")) == taken
    for number, shown in enumerate(lists(page), start=1):
        section = f"{LISTS}:nth-child({number})"
        hits = page.items(f"{section} li.hit")
        assert hits == [each for each in shown if each in taken] != []
        assert f"{len(hits)} hit" in page.texts(f"{section} > p")[0]
        assert all("✓ hit: " in text for text in page.texts(f"{section} li.hit"))
        assert not any("hit: " in text for text in page.texts(f"{section} li:not(.hit)"))


def test_two_models_stand_side_by_side_and_tell_the_part_that_proposed(page):
    page.open(user("u20"))
    assert page.texts(f"{LISTS} h3") == [MIXTURE, NETWORK]
    left, right = (each.rect for each in page.all(LISTS))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    parts = page.texts(f"{LISTS}:nth-child(1) .part")
    told = page.ask("user", key="u20")["lists"]
    assert parts == [each["part"] for each in told[0]["items"]]
    assert set(parts) <= {"softmax", "copy", "follow"}
    assert not page.all(f"{LISTS}:nth-child(2) .part")
    assert lists(page) == [[each["item"] for each in one["items"]] for one in told]


def test_a_user_without_held_out_events_is_not_judged(page):
    page.open(user(EARLY))
    assert "Nothing of this user is held out" in page.text()
    assert not page.all("li.hit")


def test_lists_change_as_a_history_grows(page):
    page.open("#/try/")
    field = page.field("Add an item")
    field.send_keys("item-10", ENTER)
    page.until(lambda: "Recommended after 1 item" in page.text(), "lists for one item")
    first = lists(page)
    assert not page.all(".change")
    field.send_keys("fresh dates 23")  # words of a name
    page.suggestions("Add an item")
    field.send_keys(ENTER)
    page.until(lambda: "Recommended after 2 items" in page.text(), "lists for two items")
    assert page.driver.current_url.endswith(history("item-10", "item-23"))
    assert lists(page) != first
    assert "new" in page.texts(".change")
    assert page.run("return document.activeElement === arguments[0]", field)
    page.field("Use the first").send_keys("\ue012")  # arrow to the left: the older item only
    page.until(lambda: "Recommended after 1 item" in page.text(), "lists for one item again")
    assert lists(page) == first
    page.all(f"{LISTS} .add")[0].click()
    page.until(lambda: "Recommended after 3 items" in page.text(), "a recommended item is added")
    page.all(".first .rows button")[0].click()
    page.until(lambda: "Recommended after 2 items" in page.text(), "the newest item is removed")
    assert page.items(".first") == ["item-23", "item-10"]


def test_a_history_is_pasted(page):
    page.open("#/try/")
    page.field("Add an item").send_keys("item-10, item-11,nothing")
    page.until(lambda: page.suggestions("Add an item") == ["Add 3 keys"], "all can be added")
    page.field("Add an item").send_keys(ENTER)
    page.until(lambda: "Recommended after 3 items" in page.text(), "lists for three items")
    assert "not an item of the models" in page.texts(".first .rows li")[0]
    odd = ["x,y", " ", HARM]
    page.one("summary").click()
    page.run("arguments[0].value = arguments[1]", page.one("#keys"), json.dumps(odd))
    page.one("details button").click()
    page.until(lambda: page.items(".first") == odd[::-1], "the history is the JSON list")
    assert page.driver.current_url.endswith(history(*odd))
    page.run("arguments[0].value = '[1, '", page.one("#keys"))
    page.one("details button").click()
    assert "no JSON list" in page.one("details [role=alert]").text


def test_an_item_leads_to_its_neighbours(page):
    page.open()
    page.field("Item").send_keys("item-10", ENTER)
    page.await_heading("Fresh apple 10")
    told = page.ask("item", key="item-10")
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Frequency"] == f"{told['count']} events in training"
    assert facts["Rank"] == f"{told['rank']} of {NUM_ITEMS} by frequency"
    assert facts["kind"] == "apple"
    followers = [each["item"] for each in told["followers"]]
    assert page.items(".apart > :first-child") == followers != []
    users = page.texts(".flow a")
    assert users == [each["user"] for each in told["users"]] != []
    neighbour = told["similar"][0]["items"][0]
    page.all(".side a[data-item]")[0].click()
    page.await_heading(neighbour["name"] or neighbour["item"])
    page.all(".flow a")[0].click()
    page.await_heading("User ")


def painted(page) -> int:
    """How many pixels of the map are not transparent."""
    script = (
        "const canvas = document.querySelector('canvas');"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "let number = 0;"
        "for (let i = 3; i < data.length; i += 4) number += data[i] > 200;"
        "return number"
    )
    return page.run(script)


def test_the_map_draws_all_items_and_highlights_those_searched(page):
    page.expected = ("willReadFrequently",)  # by this test
    page.open("#/map")
    before = page.until(lambda: painted(page), "points are drawn")
    assert before > 10 * NUM_ITEMS
    legend = page.texts(".legend li")
    assert len(legend) == 5  # kinds of items
    page.field("Highlight").send_keys("cheese")
    found = page.until(lambda: page.items(".panel .rows"), "items are listed")
    named = page.ask("map", model=MIXTURE)
    wanted = [
        key
        for key, name in zip(named["items"], named["names"], strict=True)
        if name and "cheese" in name
    ]
    assert sorted(found) == sorted(wanted) != []
    page.until(lambda: painted(page) != before, "the others are paler")
    page.all(".panel .rows a")[0].click()
    page.until(lambda: "#/item/" in page.driver.current_url, "an item is opened")
    page.driver.back()
    page.await_heading("Map of items")
    assert page.field("Highlight").get_attribute("value") == "cheese"
    assert page.items(".panel .rows") == found


def test_the_map_is_zoomed_and_a_click_opens_an_item(page):
    from selenium.webdriver import ActionChains

    page.open("#/map/item-10")
    page.until(lambda: "Fresh apple 10" in page.one(".tip").text, "it is told which item it is")
    whole = page.run("return document.querySelector('canvas').toDataURL()")
    page.one("[aria-label='Zoom in']").click()
    page.until(
        lambda: page.run("return document.querySelector('canvas').toDataURL()") != whole, "it zooms"
    )
    ActionChains(page.driver).move_to_element(page.one("canvas")).click().perform()
    page.await_heading("Fresh apple 10")
    page.open(f"#/map/{'no-item'}")
    assert "is not among the 90 most frequent items" in page.text()


def test_an_unknown_user_is_told(page):
    page.expected = (NOT_FOUND,)
    page.open(user("nobody <b>"))
    assert page.texts("main h1") == ["Unknown user nobody <b>"]
    assert "Unknown user 'nobody <b>'" in page.one("[role=alert]").text
    page.open("#/item/%zz")
    assert page.texts("main h1") == ["No such page"]


@pytest.mark.parametrize("key", HOSTILE_USERS)
def test_hostile_users_are_text(page, key):
    page.open(user(key))
    shown = page.texts("main h1")[0]
    assert shown == {"\u202eresu": "User \\u202eresu", " ": 'User " "'}.get(key, f"User {key}")
    assert page.run("return document.querySelectorAll('main img, main script, main b').length") == 0
    page.one("#search button").click()  # away, to find it by the search
    page.settle()
    page.field("User").send_keys(key, ENTER)
    page.await_heading(shown)


def test_hostile_items_are_text(page):
    page.open()
    for key in HOSTILE_ITEMS:
        page.go(item(key))
        assert page.texts("dt")[0] == "Key"
        told = page.ask("item", key=key)
        if key in (HARM, "x,y", "a/b/c", "..", "مرحبا", "%2F?#&="):
            assert page.texts("dd")[0] == key
        assert page.items("main > section .side > :first-child") == [
            each["item"] for each in told["similar"][0]["items"]
        ]
    assert page.texts("dd")[0] == "%2F?#&="
    page.go(item("k" * 400))
    assert page.run("return document.querySelector('dd bdi').textContent.length") == 400
    page.go(item("\x1b[2J\nline"))
    assert page.texts("dd")[0] == "\\x1b[2J\\nline"
    page.go(history(*HOSTILE_ITEMS))
    assert page.items(".first") == list(HOSTILE_ITEMS[::-1])
    assert "left out" not in page.text()
    page.go(item(ITEMS[1]))
    assert page.texts("main h1") == ["<script>document.title='harm'</script>"]
    page.open("#/map")
    page.field("Highlight").send_keys("<img")
    page.until(lambda: page.items(".panel .rows") == [HARM], "it is found on the map")
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0


def test_the_back_button_returns_to_the_view_and_its_place(page):
    page.resize((1280, 500))
    page.open(user("u20"))
    page.run("scrollTo(0, 300)")
    page.until(lambda: page.run("return history.state?.scrolled"), "the place is kept")
    page.all(f"{LISTS} a")[9].click()
    page.until(lambda: "#/item/" in page.driver.current_url, "an item is opened")
    page.settle()
    assert page.run("return scrollY") == 0
    page.driver.back()
    page.await_heading("User u20")
    page.until(lambda: page.run("return scrollY") == 300, "it is scrolled again")
    page.driver.forward()
    page.until(lambda: page.texts("dt")[:1] == ["Key"], "the item is there again")
    page.resize(DESKTOP)


def test_everything_is_done_without_a_mouse(page):
    page.open()
    page.press(TAB)
    assert page.focused() == "Skip to the content"
    page.press(ENTER)
    assert page.focused() == page.texts("main h1")[0]
    page.run("document.activeElement.blur()")
    page.field("User").send_keys("u2")
    page.suggestions("User")
    page.press(ESCAPE)
    assert page.field("User").get_attribute("aria-expanded") == "false"
    page.press(DOWN)
    page.until(lambda: page.texts("[role=option][aria-selected=true]"), "an option is active")
    active = page.field("User").get_attribute("aria-activedescendant")
    assert page.texts(f"#{active}") == page.texts("[role=option][aria-selected=true]")
    chosen = page.one(f"#{active} bdi").text
    page.press(ENTER)
    page.await_heading(f"User {chosen}")
    assert page.focused() == f"User {chosen}"  # where a screen reader goes on
    page.press(TAB)
    assert page.focused() == "Change this history"
    page.press(ENTER)
    page.await_heading("Try a history")
    page.press(TAB, "item-1", ENTER)
    page.until(lambda: page.items(".first")[:1] == ["item-1"], "an item is added")
    page.open("#/map")
    page.run("document.querySelector('canvas').focus()")
    page.press("+", RIGHT, RIGHT, "-", "0")
    page.until(lambda: page.texts("#said") != [""], "the item in the middle is told")
    page.press(ENTER)
    page.until(lambda: "#/item/" in page.driver.current_url, "Enter opens it")
    page.settle()


def test_a_late_answer_does_not_replace_a_newer_one(page):
    slow = (
        "const real = window.fetch;"
        "window.fetch = async (address, options) => {"
        "  if (address.includes('key=u20')) await new Promise((done) => setTimeout(done, 700));"
        "  return real(address, options);"
        "};"
    )
    with page.before_every_page(slow):
        page.open()
        page.run("location.hash = '#/user/u20'")
        page.until(lambda: page.texts("main h1") == ["User u20"], "the first is asked for")
        page.run("location.hash = '#/user/u21'")
        page.await_heading("User u21")
        shown = page.text()
        page.run("return new Promise((done) => setTimeout(done, 900))")
        assert page.text() == shown


def test_without_a_token_the_page_says_what_to_do(page):
    refuse = (
        'window.fetch = async () => new Response(\'{"error": "this server asks for its token."}\','
        "{status: 401});"
    )
    with page.before_every_page(refuse):
        page.open(user("u20"))
    assert "This server asks for its token." in page.text()
    assert "Load the page again" in page.text()


def test_models_without_users_show_no_search_for_users(page):
    export = (
        "const real = window.fetch;"
        "window.fetch = async (address, options) => {"
        "  const answer = await real(address, options);"
        "  if (!address.includes('about')) return answer;"
        "  const about = await answer.json();"
        "  about.models.forEach((model) => Object.assign(model, {users: 0, step: null}));"
        "  return new Response(JSON.stringify(about));"
        "};"
    )
    with page.before_every_page(export):
        page.open()
    assert [each.text for each in page.all("#search label")] == ["Item"]
    assert "Search an item above" in page.text()


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_a_phone_and_has_no_serious_accessibility_findings(page, view):
    page.expected = (NOT_FOUND,) if view == "unknown user" else ()
    page.open(VIEWS[view])
    assert page.accessibility() == []
    page.colours("dark")
    assert page.accessibility("color-contrast") == []
    page.resize(PHONE)
    wide = page.run("return document.documentElement.scrollWidth")
    assert wide <= PHONE[0]
    if page.all("main [role=combobox]"):
        page.field("Add an item").send_keys("item")
        page.suggestions("Add an item")
        assert page.run("return document.documentElement.scrollWidth") <= PHONE[0]
        assert page.accessibility() == []


def test_the_server_goes_away_and_comes_back(page, server):
    page.expected = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    page.open(user("u20"))
    server.stop()
    page.all(f"{LISTS} a")[0].click()
    page.until(lambda: "The server does not answer." in page.text(), "it says that it is gone")
    page.field("User").send_keys("u2")
    page.until(lambda: "The server does not answer." in page.texts(".popup p"), "the search, too")
    page.field("User").send_keys(ESCAPE, ESCAPE)
    server.start()
    page.one("main button").click()
    page.until(lambda: page.texts("dt")[:1] == ["Key"], "the item is shown after all")
    assert not page.all("[role=alert]")
