"""What the pages say, in the form of WebShop's text mode, and what can be clicked."""

from __future__ import annotations

from dataclasses import replace

from tests.envs.webshop.catalogue import PLAIN, RANGE, TEAS, WANTED
from threespo_envs.webshop import pages


def test_search_page() -> None:
    page = pages.search_page()
    assert page.text("Find me tea") == "WebShop [SEP] Instruction: [SEP] Find me tea [SEP] Search"
    assert page.body() == "Search"
    assert page.labels == ()


def test_results_page() -> None:
    page = pages.results_page([WANTED, RANGE], 1, 2)
    assert page.text("Find me tea") == (
        "Instruction: [SEP] Find me tea [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] J000000001 [SEP] Norwind Waterproof Hiking Jacket "
        "[SEP] $24.5 [SEP] L000000001 [SEP] Halo Desk Lamp [SEP] $12.0 to $15.99"
    )
    assert page.labels == ("back to search", "j000000001", "l000000001")


def test_buttons_of_results() -> None:
    first, middle, last = (pages.results_page(TEAS[:1], number, 25) for number in (1, 2, 3))
    assert first.texts[:4] == ("Back to Search", "Page 1 (Total results: 25)", "Next >", "T000000001")
    assert middle.texts[2:5] == ("< Prev", "Next >", "T000000001")
    assert last.texts[2:4] == ("< Prev", "T000000001")
    assert middle.labels == ("back to search", "< prev", "next >", "t000000001")
    assert "next >" not in pages.results_page(TEAS[:10], 1, 10).labels
    assert pages.results_page([], 1, 0).labels == ("back to search",)


def test_item_page() -> None:
    page = pages.item_page(WANTED)
    assert page.body() == (
        "Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] dark blue [SEP] size [SEP] small [SEP] large [SEP] Norwind Waterproof Hiking Jacket "
        "[SEP] Price: $24.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert page.labels == ("back to search", "< prev", "red", "dark blue", "small", "large", "description", "features", "reviews", "buy now")


def test_the_button_attributes_is_an_option() -> None:
    page = pages.item_page(PLAIN, show_attributes=True)
    assert page.texts[-2:] == ("Attributes", "Buy Now")
    assert page.labels[-2:] == ("attributes", "buy now")


def test_sub_pages() -> None:
    assert pages.sub_page(WANTED, "features").body() == "Back to Search [SEP] < Prev [SEP] Made of breathable cotton. [SEP] Two pockets."
    assert pages.sub_page(WANTED, "description").texts[2:] == ("A jacket for all seasons.",)
    assert pages.sub_page(WANTED, "reviews").texts == ("Back to Search", "< Prev")
    assert pages.sub_page(RANGE, "description").texts == ("Back to Search", "< Prev")
    assert pages.sub_page(WANTED, "attributes").texts[2:] == ("waterproof", "breathable cotton", "fashion", "hiking jackets", "Clothing › Men › Jackets")
    assert all(pages.sub_page(WANTED, kind).labels == ("back to search", "< prev") for kind in pages.SUB_PAGES)


def test_no_label_comes_twice_and_blanks_do_not_matter() -> None:
    page = pages.item_page(replace(WANTED, options=(("a", (" Two  Words", "x")), ("b", ("x", "Description")))))
    assert page.labels == ("back to search", "< prev", "two words", "x", "description", "features", "reviews", "buy now")
