"""Who is let in: the browser with the one-time token, and what a page of another origin may try."""

from __future__ import annotations

import pytest

from holdfast.api.web.access import FORM_HEADER, Access

from .conftest import AUTHORITY

PAGES = (
    "",
    "rows",
    "run/x",
    "step/1",
    "state/@",
    "diff",
    "diff/file",
    "raw/now?path=blob",
    "live",
    "static/x/style.css",
    "act/undo",
    "done/x",
    "held",
)


def test_the_token_lets_one_browser_in_once(outside):
    entry = outside.access.entry
    first = outside.enter()
    cookie = first.headers["set-cookie"]
    assert cookie.endswith(f"; Path={outside.access.base}; HttpOnly; SameSite=Strict")
    assert entry.rpartition("=")[2] not in first.text
    assert outside.get("").status_code == 200
    del outside.client.headers["cookie"]
    again = outside.client.get(entry)
    assert (again.status_code, "set-cookie" in again.headers) == (403, False)


def test_what_only_looks_at_the_address_is_not_let_in(outside):
    assert outside.client.head(outside.access.entry).status_code == 405
    outside.enter()


def test_the_browser_that_is_in_may_open_the_address_again(site):
    answer = site.get("enter?token=anything")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{site.access.base}/")


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff", "?token=None", "?other=1"])
def test_another_token_does_not(outside, query):
    entry = outside.access.entry
    assert outside.get(f"enter{query}").status_code == 403
    assert outside.client.get(entry).status_code == 200, "a wrong one takes nothing from the right one"


@pytest.mark.parametrize("page", PAGES)
def test_without_the_cookie_there_is_no_page(outside, page):
    assert outside.get(page).status_code == 401
    for cookie in ("holdfast=", "holdfast=wrong", "holdfast=\xff", "other=1", 'holdfast="', "holdfast=a; holdfast=b"):
        assert outside.get(page, cookie=cookie.encode("latin-1")).status_code == 401


def test_the_cookie_of_another_server_is_none(outside):
    other = Access()
    given = other.exchange(other.entry.rpartition("=")[2])
    assert given is not None
    cookie = given.partition(";")[0]
    assert outside.get("", cookie=cookie).status_code == 401
    assert other.base != outside.access.base


@pytest.mark.parametrize("page", ["", "enter?token=x", "state/@"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost:7000", "127.0.0.1", "127.0.0.1:7001", "127.0.0.1:7000.evil.example", "[::1]:7000", ""],
)
def test_a_host_of_another_name_is_refused(site, host, page):
    assert site.get(page, host=host).status_code == 403


def test_two_hosts_are_none(site):
    answer = site.client.get(
        f"{site.access.base}/",
        headers=[("host", AUTHORITY), ("host", AUTHORITY), ("cookie", site.client.headers["cookie"])],
    )
    assert answer.status_code == 403


@pytest.mark.parametrize("page", ["", "enter?token=x", "raw/now?path=blob"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:7001", "https://127.0.0.1:7000", "null", ""]
)
def test_another_origin_is_refused(site, origin, page):
    assert site.get(page, origin=origin).status_code == 403


@pytest.mark.parametrize("whence", ["cross-site", "same-site", "", "anything"])
def test_what_a_page_elsewhere_causes_is_refused(site, whence):
    assert site.get("", sec_fetch_site=whence).status_code == 403


@pytest.mark.parametrize("whence", ["same-origin", "none"])
def test_what_our_own_page_and_the_user_cause_is_not(site, whence):
    assert site.get("", sec_fetch_site=whence).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_change_has_to_be_asked_for_by_a_page_of_ours(site, method):
    def ask(**headers):
        return site.client.request(
            method, f"{site.access.base}/", headers={name.replace("_", "-"): value for name, value in headers.items()}
        ).status_code

    own = {"origin": f"http://{AUTHORITY}"}
    token = {FORM_HEADER: site.access.form_token}
    assert ask() == ask(**own) == ask(**token) == 403
    assert ask(**own, **{FORM_HEADER: "wrong"}) == 403
    assert ask(**own, **token) == 405, "it is let through; nothing can be changed yet"
    assert site.client.request(method, site.access.entry, headers=own).status_code == 405


@pytest.mark.parametrize("page", [*PAGES, "nothing", "raw/now?path=../x"])
def test_every_answer_says_what_a_browser_may_do_with_it(site, page):
    for answer in (site.get(page), site.get(page, host="evil.example"), site.get(page, cookie="")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'; sandbox", "")
        assert "unsafe-eval" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in answer.headers
