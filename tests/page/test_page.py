"""The page as a user meets it: from question to answer, reloads, restarts, two at once, keyboard, small screens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Model, page_of, user
from playwright.sync_api import Browser, Page, expect

JAPAN = "What is the currency of Japan?"
CAPITALS = "What are the capitals of Portugal and Mongolia?"
LONG = 120_000  # ms; two cores, and two users at once
TITLES = {"react": "ReAct", "reflexion": "Reflexion", "plan-act-reflect": "Plan, act, reflect"}


def ask(page: Page, graph: str, question: str = JAPAN) -> None:
    page.get_by_role("radio", name=TITLES[graph], exact=True).check()
    page.get_by_label("Question", exact=True).fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#run-title")).to_have_text(question)


def ends(page: Page, status: str = "ended") -> None:
    expect(page.locator("#run-status")).to_have_attribute("data-status", status, timeout=LONG)


def said(page: Page) -> list[str]:
    """What the transcript holds, part by part, all of it unfolded."""
    page.locator("#transcript details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    return page.locator("#transcript > li .said").all_inner_texts()


def numbers(page: Page) -> dict[str, int]:
    """The counters that are whole tokens."""
    names = ("reused", "saved", "generated", "prefilled-shared", "prefilled-alone")
    return {name: int(re.sub(r"\D", "", page.locator(f"[data-counter={name}]").first.inner_text())) for name in names}


@pytest.mark.parametrize("graph", TITLES)
def test_from_question_to_answer(address: str, browser: Browser, graph: str) -> None:
    with user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        expect(page.locator("#server")).to_contain_text("SmolLM2-135M-Instruct")
        ask(page, graph)
        ends(page)
        expect(page.locator("#answer [data-part=answer]")).to_have_text("Yen")
        agents = page.locator("#transcript > li[data-kind=turn]").evaluate_all("all => all.map(li => li.dataset.agent)")
        assert {"plan", "act"} <= set(agents)
        assert page.locator("#transcript > li[data-kind=tool] details").count() >= 1
        # The band is the trajectory: parts that follow one another, read by others than wrote them.
        spans = page.locator("#band [role=option]").evaluate_all("all => all.map(one => ({...one.dataset}))")
        position = 0
        for span in spans:
            assert int(span["start"]) == position
            position += int(span["tokens"])
        assert {span["writer"] for span in spans} >= {"plan", "act"}
        assert any(set(span["readers"].split()) - {span["writer"]} for span in spans)
        rows = page.locator("#turns tbody tr").all_inner_texts()
        assert len(rows) >= 4
        count = numbers(page)
        assert count["reused"] > 0
        assert 0 < count["prefilled-shared"] < count["prefilled-alone"]
        expect(page.locator("#runs a")).to_have_count(1)
        expect(page.locator("#runs a")).to_contain_text("Yen")


def test_a_reload_in_mid_run_goes_on(address: str, browser: Browser) -> None:
    with user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        ask(page, "plan-act-reflect", CAPITALS)
        page.locator("#transcript > li[data-kind=turn]").nth(1).wait_for(timeout=LONG)
        page.reload()
        expect(page.locator("#run-title")).to_have_text(CAPITALS)
        ends(page)
        live = said(page)
        expect(page.locator("#answer [data-part=answer]")).to_have_text("Lisbon and Ulaanbaatar")
        page.reload()
        ends(page)
        assert said(page) == live
        page.get_by_role("link", name="Descant").first.click()
        expect(page.locator("#run-title")).to_be_hidden()
        page.go_back()
        expect(page.locator("#run-title")).to_have_text(CAPITALS)


def test_two_users_at_once(address: str, browser: Browser) -> None:
    with user(browser) as one, user(browser) as other:
        pages = [one.new_page(), other.new_page()]
        for page, question in zip(pages, (CAPITALS, JAPAN), strict=True):
            page.goto(address)
            ask(page, "plan-act-reflect", question)
        for page, answer in zip(pages, ("Lisbon and Ulaanbaatar", "Yen"), strict=True):
            ends(page)
            expect(page.locator("#answer [data-part=answer]")).to_have_text(answer)


def test_stop_and_go_on(address: str, browser: Browser) -> None:
    with user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        ask(page, "plan-act-reflect", CAPITALS)
        page.locator("#transcript > li[data-kind=turn]").nth(1).wait_for(timeout=LONG)
        page.get_by_role("button", name="Stop").click()
        ends(page, "stopped")
        page.get_by_role("button", name="Go on").click()
        ends(page)
        expect(page.locator("#answer [data-part=answer]")).to_have_text("Lisbon and Ulaanbaatar")


def test_keyboard_alone(address: str, browser: Browser) -> None:
    with user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        expect(page.locator("#server")).to_contain_text("icarus")
        page.get_by_label("Question", exact=True).focus()
        page.keyboard.type(JAPAN)
        page.keyboard.press("Enter")
        ends(page)
        page.locator('#band [role=option][tabindex="0"]').focus()
        page.keyboard.press("End")
        last = page.locator("#band [role=option]").last
        expect(last).to_have_attribute("aria-selected", "true")
        page.keyboard.press("Home")
        expect(page.locator("#band [role=option]").first).to_have_attribute("aria-selected", "true")
        expect(page.locator("#part")).to_contain_text("Read from the cache by")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_small_screen(address: str, browser: Browser, colours: Any) -> None:
    with user(browser, viewport={"width": 360, "height": 740}, color_scheme=colours) as someone:
        page = someone.new_page()
        page.goto(address)
        ask(page, "plan-act-reflect")
        ends(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_missing_adapter_is_a_sentence(model: Model, browser: Browser, tmp_path: Path) -> None:
    with page_of(model, tmp_path, "--adapters", "act=gone") as address, user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        expect(page.locator("#server")).to_contain_text("The server has no adapter gone")
        page.get_by_label("Question", exact=True).fill(JAPAN)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#ask-error")).to_contain_text("The server has no adapter 'gone'")
        expect(page.get_by_label("Question", exact=True)).to_have_value(JAPAN)  # nothing is lost


def test_a_server_that_restarts_in_mid_run(model: Model, browser: Browser, tmp_path: Path) -> None:
    """The page says so; once the server is back, and the page was started anew, the run goes on to its answer."""
    with page_of(model, tmp_path) as address, user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        ask(page, "plan-act-reflect", CAPITALS)
        page.locator("#transcript > li[data-kind=turn]").nth(1).wait_for(timeout=LONG)
        model.kill()
        try:
            ends(page, "failed")
            expect(page.locator("#run-error")).to_contain_text("The server at http://127.0.0.1")
            expect(page.locator("#server")).to_contain_text("cannot be reached", timeout=LONG)
            page.get_by_role("button", name="Go on").click()
            expect(page.locator("#run-error")).to_contain_text("cannot be reached", timeout=LONG)
        finally:
            model.start()
        expect(page.locator("#server")).to_contain_text("SmolLM2", timeout=LONG)
    with page_of(model, tmp_path) as address, user(browser) as someone:
        page = someone.new_page()
        page.goto(address)
        page.locator("#runs a").first.click()
        expect(page.locator("#run-title")).to_have_text(CAPITALS)
        page.get_by_role("button", name="Go on").click()
        ends(page)
        expect(page.locator("#answer [data-part=answer]")).to_have_text("Lisbon and Ulaanbaatar")
