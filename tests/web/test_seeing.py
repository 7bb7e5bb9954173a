"""What the pages show, of a real server."""

import html
import json
import re
import urllib.parse

import pytest

from beanlite.errors import ConfigError
from beanlite.protocol.operators.filters import IDS_MAX, NAMES, Filter
from beanlite.web.pages import filter_of
from beanlite.web.seeing import SPANS
from tests.support.servers import start_beanlite
from tests.support.web import Web, tubes_on
from tests.support.wire import Wire, until

NASTY = b'<script>alert("it\'s")</script>'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("web"), "--history", "1d") as server:
        yield server


@pytest.fixture(scope="module")
def wire(server):
    """A client that has put some jobs."""
    with Wire(server.connect()) as wire:
        wire.ask("use mail")
        wire.ask("watch mail")
        ids = [wire.put(b'{"to": "user%d"}' % number) for number in range(60)]
        assert wire.ask(f"reserve-job {ids[0]}").startswith("RESERVED")
        assert wire.ask(f"bury {ids[0]} 7") == "BURIED"
        wire.put(b"later", delay_s=1000)
        assert wire.ask("reserve").startswith("RESERVED")
        wire.ask("use nobodys")
        wire.put(NASTY)
        for number in range(60):
            wire.ask(f"use made-{number:02}")
            wire.ask(f"watch made-{number:02}")
            wire.put(b"%d" % number)
        yield wire


@pytest.fixture(scope="module")
def web(server, wire):
    assert wire.stats()["current-jobs-buried"] == "1"
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
        yield web


def test_the_overview_counts_and_tells_what_is_wrong(web, server):
    page = web.get("/")
    assert page.status == 200
    assert "ready 119 reserved 1 delayed 1 buried 1" in page.text
    assert "1 job of mail is buried, the first for " in page.text
    assert 'href="/jobs?state=reserved&amp;sort=in-state"' in page.html
    command = f"beanlite jobs --tube mail --state buried --connect 127.0.0.1:{server.port}"
    told = f"nothing becomes of them by itself: {command} · since [0-9: -]* UTC · mail 1 "
    assert re.search(told, page.text)
    assert '<a href="/tube/mail?state=buried#jobs"><code>beanlite jobs' in page.html
    assert '<a href="/tube/mail?state=buried">mail</a> 1' in page.html
    assert "Tubes 63" in page.text


def test_tubes_are_sorted_searched_and_paged(web):
    made = [f"made-{number:02}" for number in range(60)]
    assert tubes_on(web.get("/")) == ["default", *made[:49]]
    assert tubes_on(web.get("/?page=2")) == [*made[49:], "mail", "nobodys"]
    assert tubes_on(web.get("/?page=9")) == []
    assert tubes_on(web.get("/?sort=ready"))[0] == "mail"
    assert tubes_on(web.get("/?like=e-07")) == ["made-07"]
    assert tubes_on(web.get("/?like=*s")) == ["nobodys"]
    assert "No tube has such a name" in web.get("/?like=nothing").text


@pytest.mark.parametrize("name", [".", "..", "...", "../..", "a/../b", "a/./b", "./"])
def test_tube_whose_name_is_that_of_a_folder_has_a_page(web, wire, name):
    wire.ask(f"use {name}")
    listed = web.get(f"/?{urllib.parse.urlencode({'like': name})}").html
    (path,) = re.findall(rf'<a href="([^"]+)">{re.escape(name)}</a>', listed)
    page = web.get(urllib.parse.urljoin("/", path))  # as a browser does
    assert page.status == 200
    assert f"<h1>{name}" in page.html
    paused = web.post("/pause", {"tube": name, "for": "soon", "back": page.fields["back"]})
    assert "'soon' is not a length of time" in paused.text
    links = {paused.path, *re.findall('"(/tube/[^"]+)"', page.html)}
    paths = {urllib.parse.urljoin("http://page/", link).partition("?")[0] for link in links}
    assert (len(links) > len(SPANS), paths) == (True, {f"http://page{path}"})


def test_a_tube_shows_its_jobs_by_state_and_text(web):
    page = web.get("/tube/mail")
    assert "ready 58 reserved 1 delayed 1 buried 1" in page.text
    until(lambda: re.search(r"an hour: in now \d+, at most 61", web.get("/tube/mail?span=week").html))
    assert "user58" not in page.text
    assert "More jobs" in page.text
    buried = web.get("/tube/mail?state=buried")
    assert "user0" in buried.text
    assert "user2" not in buried.text
    found = web.get("/tube/mail?state=ready&text=user58")
    assert "user58" in found.text
    assert "user57" not in found.text
    assert "No job fits" in web.get("/tube/mail?text=nothing").text
    assert web.get("/tube/none").status == 404


def test_one_line_says_which_jobs_are_shown(web):
    assert "user58" in web.get("/tube/mail?q=state:ready+to:user58").text
    page = web.get("/jobs?" + urllib.parse.urlencode({"q": "tube:made-0* pri:0"}))
    assert "all 10 that match" in page.text
    assert ids_on(web.get("/jobs?q=id:1,3+state:buried")) == [1]
    assert ids_on(web.get("/jobs?" + urllib.parse.urlencode({"q": 'to:"user2" reserves:<1'}))) == []


def ids_on(page):
    return [int(job_id) for job_id in re.findall('<tr data-id="([0-9]+)"', page.html)]


def test_older_links_are_shown_as_one_line(web):
    page = web.get("/tube/mail?state=ready&text=user58&where=to=user58&reserves_min=0")
    assert 'value="state:ready reserves:&gt;=0 user58 to:user58"' in page.html
    assert ids_on(page) == ids_on(web.get("/tube/mail?q=to:user58"))
    assert 'href="/tube/mail?q=reserves%3A%3E%3D0+user58+to%3Auser58+state%3Aburied"' in page.html


def test_key_that_is_very_like_another_is_told_with_it(web):
    page = web.get("/jobs?q=stat:buried")
    assert "No job fits" in page.text
    assert "stat is looked for in bodies that are JSON; did you mean state:buried?" in page.text


def test_columns_show_what_is_in_bodies(web):
    page = web.get("/tube/mail?q=to:user58&columns=to,+error.type")
    assert "<th>to</th><th>error.type</th>" in page.html
    assert '<td class="name" data-label="to">user58</td>' in page.html
    assert '<td class="name" data-label="error.type"></td>' in page.html
    more = web.get("/tube/mail?columns=to").html
    assert "columns=to" in more[more.index('rel="next"') - 200 :]


def test_jobs_are_grouped_by_what_is_in_bodies(web):
    page = web.get("/jobs?q=tube:mail&group=to&columns=to")
    assert "62 jobs match." in page.text or "61 jobs match." in page.text
    assert re.search(
        '<a href="/jobs[?]q=tube%3Amail[+]to%3Auser7&amp;columns=to">user7</a></td>\\s*<td class="n">1<', page.html
    )
    assert "no value 1 1.6 %" in page.text
    states = web.get("/tube/mail?group=state")
    assert '<a href="/tube/mail?q=state%3Aburied">buried</a>' in states.html
    assert "No job fits" in web.get("/jobs?q=tube:none&group=state").text


def test_link_of_a_group_leads_to_its_jobs(web, wire):
    wire.ask("use grouped")
    values = [5, "5", 5.0, True, None, "", "a b", 'q"q', "a:b", "//x", "<b>", "a\nb", "50%", "a&b=c", "\\"]
    for value in values:
        wire.put(json.dumps(dict.fromkeys(("k", "pri", "id", "a:b", "x y"), value)).encode())
    for path in ("k", "pri", "id", "a:b", '"x y"'):
        page = web.get("/jobs?" + urllib.parse.urlencode({"q": "tube:grouped", "group": path}))
        row = '<td class="value"><a href="([^"]*)">.*?</a></td>\\s*<td class="n">([0-9]+)<'
        groups = re.findall(row, page.html, re.DOTALL)
        assert sum(int(number) for _, number in groups) == len(values)
        for link, number in groups:
            assert len(ids_on(web.get(html.unescape(link)))) == int(number), (path, link)
    wire.request("change-jobs", do="delete", tube="grouped")


def test_words_of_the_filter_are_completed(web):
    def words(word, **also):
        page = web.get(f"/complete?{urllib.parse.urlencode({'word': word, **also})}")
        return [each["word"] for each in json.loads(page.html)]

    assert words("s") == ["state:", "since:"]
    assert words("state:b") == ["state:buried"]
    assert words("why:") == ["why:client", "why:operator", "why:tries", "why:expired"]
    assert words("age:") == ["age:>", "age:<"]
    assert words("tube:made-0") == [f"tube:made-0{number}" for number in range(10)]
    assert len(words("tube:")) == 12
    assert "tube:" in words("t")
    assert "tube:" not in words("t", but="tube")
    assert words("customer:4") == words("x" * 1000) == []


def test_tables_that_refresh_share_an_answer(server, web):
    with Wire(server.connect()) as wire:
        wire.ask("use shared")
        first = wire.put(b"first")
        path, live = "/tube/shared", {"beanlite-live": "1"}
        assert f'data-id="{first}"' in web.get(path, **live).html
        until(lambda: shares(web, wire, path, live))
        assert wire.request("change-jobs", do="delete", tube="shared")["next"] is None


def shares(web, wire, path, live):
    """Whether an answer does not show the job that was put since another one; under load it takes some attempts."""
    web.get(path, **live)
    job_id = f'data-id="{wire.put(b"late")}"'
    shared = job_id not in web.get(path, **live).html
    assert job_id in web.get(path).html
    return shared


def test_the_next_page_goes_on_behind_the_last_job(web):
    page = web.get("/tube/mail?state=ready")
    (more,) = [line for line in page.html.splitlines() if 'rel="next"' in line]
    second = web.get(more.split('"')[1].replace("&amp;", "&"))
    assert "user59" in second.text
    assert "user2" not in second.text


def test_a_job_is_shown_in_each_form_and_with_its_history(web):
    page = web.get("/job/1")
    assert "Job 1 buried" in page.text
    assert '{ "to": "user0" }' in page.text
    assert [word in page.text for word in ("put mail", "reserve mail", "bury mail 7")] == [True] * 3
    assert "7b 22 74 6f" in web.get("/job/1?body=hex").text
    raw = web.get("/job/1?body=raw")
    assert (raw.html, raw.headers["content-disposition"]) == ('{"to": "user0"}', 'attachment; filename="job-1"')
    assert "The body is not JSON" in web.get("/job/62?body=json").text
    for job_id in 999_999, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**23:
        assert web.get(f"/job/{job_id}").status == 404
    for job_id in 1 << 63, (1 << 64) - 1:
        assert web.get(f"/put?from={job_id}").status == 404


def test_a_job_that_has_gone_leaves_its_history(web, wire):
    job_id = wire.put(b"gone")
    assert wire.ask(f"delete {job_id}") == "DELETED"
    page = web.get(f"/job/{job_id}")
    assert page.status == 200
    assert "The job has gone" in page.text
    assert "delete" in page.text


def test_a_tube_of_any_name_has_its_page(server, web):
    with Wire(server.connect()) as wire:
        name = "+a/b;c.d$e_(f)-/"
        wire.ask(f"use {name}")
        job_id = wire.put(b"job")
        assert "+a/b;c.d$e_(f)-/" in tubes_on(web.get("/?like=*c.d*"))
        (link,) = re.findall('href="(/tube/[^"]*)"', web.get(f"/job/{job_id}").html)
        assert "ready 1" in web.get(link).text
        assert wire.ask(f"delete {job_id}") == "DELETED"


def test_nothing_in_a_body_or_a_name_is_taken_for_the_page(web):
    script = "%22%3E%3Cscript%3E"
    for path in ("/tube/nobodys", "/job/62", f"/jobs?text={script}", f"/?like={script}", f"/?done={script}"):
        page = web.get(path)
        assert page.status == 200
        assert "<script>" not in page.html
    assert "&lt;script&gt;" in web.get("/job/62").html


def test_no_link_makes_a_page_say_what_it_likes(web):
    assert "Call 555" not in web.get("/?done=Call+555+now").html
    assert 'class="notice" role="status"' not in web.get("/?done=Call+555+now").html


@pytest.mark.parametrize(
    ("path", "status"),
    [("/jobs?ids={}", 400), ("/jobs?pri_min={}", 400), ("/jobs?holder={}", 400), ("/job/{}", 404), ("/change/{}", 404)],
)
def test_a_number_of_thousands_of_digits_is_a_mistake_like_any_other(web, path, status):
    assert web.get(path.format("9" * 5000)).status == status


def test_clients_and_the_server(web, wire):
    assert wire.stats()["current-connections"] != "0"
    clients = web.get("/clients").text
    assert "puts, reserves" in clients
    assert "default , mail" in clients
    server = web.get("/journal").text
    assert "Keeps jobs yes" in server
    assert "The server makes none by itself" in server


@pytest.mark.parametrize(("key", "name"), [item for item in NAMES.items() if item[0] != "tube_like"])
def test_page_reads_each_criterion_of_older_links_as_its_type(key, name):
    value = {"state": "buried", "where": "a=7", "why": "tries"}.get(key, "7")
    criteria = filter_of({name: value}).criteria()
    assert Filter.model_validate(criteria, strict=True).criteria() == criteria
    assert criteria.keys() == {key}


def test_a_thousand_ids_can_be_looked_up_however_long_they_are():
    ids = [(1 << 63) - number for number in range(IDS_MAX)]
    assert filter_of({"ids": ", ".join(map(str, ids))}).ids == ids
    with pytest.raises(ConfigError, match="characters at most"):
        filter_of({"ids": "1," * 20_000})


@pytest.mark.parametrize(
    "path",
    [
        "/?page=x", "/?page=99999999999", "/?sort=luck", "/tube/mail?span=century",
        "/job/1?body=song", "/jobs?sort=luck", "/tube/a%20b", "/jobs?after=5",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told_and_no_failure(web, path):
    page = web.get(path)
    assert page.status == 400
    assert "That can't be done" in page.text


@pytest.mark.parametrize("path", ["/jobs", "/tube/mail"])
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("older", "soon", "age:>soon: 'soon' is not a length of time"),
        ("state", "lost", "state:lost: one of ready, reserved, delayed, buried"),
        ("pri_min", "-1", "pri:>=-1: '-1' is not a whole number from 0"),
        ("ids", "1,x", "id:1,x: 'x' is not a whole number from 0"),
        ("holder", "\N{GRINNING FACE}", "found by its number or its address, holder:17 or host:10.0.0.5"),
        ("text", "x" * 2000, "1000 characters at most"),
        ("newer", "9999999999d", "is more than"),
        ("q", "state:burried", "state:burried: did you mean state:buried?"),
        ("q", "tries:5 mail", "tries:5: write tries:>=5"),
        ("q", 'text "of', 'the quote is not closed: "of'),
        ("q", "tube:a tube:b", "tube is given twice"),
        ("q", 'tube:"\\ud800"', "half a pair of surrogates is no character"),
        ("columns", "customer, a..b", "'a..b' is not a path, such as customer"),
        ("group", "a b", "'a b' is no path, such as error.type, and not tube, state, why, note"),
    ],
)
def test_a_mistake_in_the_filter_is_told_at_its_field(web, path, name, value, why):
    page = web.get(f"{path}?{urllib.parse.urlencode({name: value})}")
    field = name if name in {"columns", "group"} else "q"
    assert page.status == 400
    assert html.escape(value[:20]) in page.html.replace("&#34;", "&quot;")
    tail = "</label>" if field != "q" else "</span>"
    assert re.search(rf'<input [^>]*name="{field}" [^>]*aria-invalid="true"[^>]*>{tail}', page.html)
    assert page.html.count('id="wrong"') == 1
    assert why in page.text
    assert "<tbody>" not in page.html.partition('id="list"')[2]


def test_a_name_that_no_tube_can_have_is_told_in_the_filter(web):
    page = web.get("/jobs?tube=a%20b")
    assert (page.status, "no tube can have the name 'a b'" in page.text) == (400, True)


def test_unknown_form_of_bodies_is_told_with_those_that_there_are(web):
    assert "body: there is no form 'song', only auto, text, json, hex, raw" in web.get("/job/1?body=song").text


def test_groups_of_notes_tell_that_their_links_may_lead_to_more(web):
    web.post("/change", {"ids": 1, "do": "note", "note": "INC-1", "sure": 1})
    assert "INC-1" in web.get("/jobs?group=note").text
    assert "a link leads to all jobs that have this text" in web.get("/jobs?group=note").text
    assert "a link leads to all jobs" not in web.get("/jobs?group=state").text
    web.post("/change", {"ids": 1, "do": "note", "note": "", "sure": 1})


def test_any_query_makes_a_page(web):
    for path in ("/", "/jobs", "/tube/mail", "/clients", "/changes"):
        assert web.get(f"{path}?path=x&name=y&request=z").status == 200


def test_each_page_keeps_to_itself(web):
    for path in ("/", "/job/1", "/nothing", "/static/page.js"):
        headers = web.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert web.get("/").headers["cache-control"] == "no-store"
    assert web.get("/nothing").status == 404


@pytest.mark.parametrize("path", ["/", "/tube/mail"])
@pytest.mark.parametrize("span", SPANS)
def test_chart_is_told_as_a_picture_and_as_a_table(web, wire, path, span):
    wire.ask("use mail")
    wire.ask(f"delete {wire.put(b'chart')}")
    until(lambda: re.search(r"in now \S+, at most \S*[1-9]", web.get(f"{path}?span={span}").html))
    page = web.get(f"{path}?span={span}")
    assert "Known since" in page.text
    assert ("p99" in page.text) is (path != "/")
    heads = re.findall(r"<th[^>]*data-key[^>]*>", page.html)
    rows = re.findall(r"<tr data-id=.*?</tr>", page.html)
    assert {len(re.findall("<td", row)) for row in rows} == {1 + len(heads)}
    assert len(rows) > 12
    assert len(re.findall(r'aria-label="[^"]* now ', page.html)) == (2 if path == "/" else 3)
