"""The page's server without a browser: what it gives, to whom, and what it refuses."""

from __future__ import annotations

import collections
import http.client
import itertools
import json
import random
import re
import signal
import socket
import sys
from typing import Any

import pytest

from tests.harness import DEADLINE_S, GRN, wait_for
from tests.web.conftest import Server

READS = [
    *("/api/jobs", "/api/failed"),
    *("/api/stream", "/api/history", "/api/timeline", "/api/profiles", "/api/sweeps"),
    *("/api/array/1", "/api/array/1/ids"),
    *("/api/sweep", "/api/job/1", "/api/job/1/log", "/api/job/1/output", "/api/lease/abcd1234"),
]
WRITES = [f"/api/job/1/{act}" for act in ("cancel", "hold", "release", "retry", "priority")]
WRITES += ["/api/jobs/cancel", "/api/jobs/retry", "/api/submit", "/api/forget", "/api/unbook"]
FOREIGN = [
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Sec_Fetch_Site": "cross-site"},
]


def test_nothing_is_told_or_done_without_a_session(server):
    for method, path in [("GET", path) for path in READS] + [("POST", path) for path in WRITES]:
        for said in ("", "Bearer wrong", "Basic wrong"):
            status, answer, _ = server.request(method, path, Authorization=said)
            assert status == 401, (method, path)
            assert "grn web" in answer["error"]


def test_nothing_is_told_or_done_for_another_page_even_with_a_session(server):
    server.unlock()
    paths = [("GET", path) for path in READS] + [("POST", path) for path in WRITES]
    for (method, path), headers in itertools.product(paths, FOREIGN):
        status, answer, _ = server.request(method, path, **headers)
        assert status == 403, (method, path, headers)
        assert answer["error"]


def test_other_methods_are_refused(server):
    server.unlock()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path in ["/", *READS, *WRITES]:
            assert server.request(method, path)[0] in (403, 404, 405), (method, path)


def test_a_link_is_good_for_one_session(server):
    server.unlock()
    link = server.link.partition("#link=")[2]

    status, answer, _ = server.request("POST", "/api/session", {"link": link})

    assert status == 401
    assert "used already" in answer["error"]


BODIES = {
    400: [
        *(b"", b"[]", b"{", b'"x"', b"x" * 100_000, b'{"link": 7}', b"\xff", b'{"link": "\xe9"}'),
        *(b"[" * 2000, b'{"a":' * 800, b'{"link": ' + b"[" * 1500 + b"]" * 1500 + b"}"),
        b'{"link": ' + b"9" * 4000 + b"}",
    ],
    401: [b'{"link": "\xc3\xa9"}', b'{"link": "\\ud800"}', b'{"link": ""}'],
}


def test_a_strange_body_opens_no_session(server):
    for status, body in [(status, body) for status, all in BODIES.items() for body in all]:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        line.request("POST", "/api/session", body)
        answer = line.getresponse()

        assert (answer.status, json.loads(answer.read()).keys()) == (status, {"error"}), body[:80]
        line.close()
    assert server.job.err.count("\n") == 1  # what it said when it began


def test_words_that_are_not_ascii_are_no_session(server):
    server.unlock()
    for said in ("Bearer é", "Bearer ÿ", "é"):
        for path in ("/api/history", "/metrics"):
            assert server.request("GET", path, Authorization=said)[0] == 401
    assert server.job.err.count("\n") == 1


def test_a_number_that_is_none_finds_no_job(server):
    server.unlock()
    for number in ("9" * 5000, "9" * 19, "-1", "x", "%C2%B2", "1e3"):
        assert server.request("GET", f"/api/job/{number}")[0] == 404, number[:20]
        assert server.request("POST", f"/api/job/{number}/hold", {})[0] == 404, number[:20]
    assert server.request("GET", "/api/history?most=%C2%B2")[0] in (200, 409)
    assert server.job.err.count("\n") == 1


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_trouble(server):
    head = f"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
    for rest in (b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as line:
            line.sendall(head + rest)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass

    server.unlock()
    assert server.job.err.count("\n") == 1


TOKENS = [
    *(
        b"GET",
        b"POST",
        b"HEAD",
        b"OPTIONS",
        b"\xff",
        b" ",
        b"\r\n",
        b"\0",
        b"%00",
        b"%ff",
        b"%",
        b"?",
    ),
    *(b"/", b"//", b"/..", b"/api/session", b"/api/job/", b"1", b"9" * 5000, b"/log", b"/cancel"),
    *(
        b"/api/sweep?name=",
        b"/api/stream",
        b"/metrics",
        b"Bearer ",
        "é".encode(),
        "é".encode("latin-1"),
    ),
    *(
        b"[" * 1000,
        b'{"link":',
        b'"\\ud800"',
        b"}",
        b"a" * 3000,
        b"chunked",
        b"HTTP/1.1",
        b"HTTP/9",
    ),
]
NAMES = [
    *(b"Authorization", b"Origin", b"Content-Length", b"Transfer-Encoding", b"Sec-Fetch-Site"),
    *(b"Cookie", b"Expect", b"Upgrade", b"Connection", b"Content-Type", b"X-\xe9"),
]


def noise(chance, most):
    return b"".join(chance.choice(TOKENS) for _ in range(chance.randrange(most)))


def a_strange_request(chance, port, session=""):
    """Return a request that is strange in some of its parts; with a session it only reads."""
    verb = b"GET" if session else chance.choice([b"GET", b"POST", noise(chance, 3)])
    paths = [path.encode() for path in [*READS, *WRITES, "/api/session", "/metrics", "/"]]
    path = chance.choice(paths) + (noise(chance, 4) if chance.random() < 0.5 else b"")
    body = noise(chance, 5)
    headers = [(b"Host", b"127.0.0.1:%d" % port), (b"Connection", b"close")]
    if session:
        headers.append((b"Authorization", b"Bearer " + session.encode()))
    if chance.random() < 0.8:
        headers.append((b"Content-Length", b"%d" % len(body)))
    headers += [(chance.choice(NAMES), noise(chance, 4)) for _ in range(chance.randrange(4))]
    lines = [b"%b %b HTTP/1.1" % (verb, path), *(b"%b: %b" % one for one in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def status_of(port, request):
    """Send a request and hang up; return the status of the answer, None if there is none."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as line:
        try:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(4096)
        except ConnectionError:
            return None
    return int(answer.split()[1]) if answer else None


@pytest.mark.parametrize("is_open", [False, True], ids=["stranger", "session"])
def test_no_strange_request_makes_it_fail_or_write_to_the_terminal(server, is_open):
    if is_open:
        server.unlock()
    seed, count = 20260117, 500
    chance = random.Random(seed)
    requests = [a_strange_request(chance, server.port, server.session) for _ in range(count)]
    statuses = collections.Counter(status_of(server.port, request) for request in requests)

    print(f"strange requests: {seed=} {count=} {is_open=} statuses={dict(statuses)}")
    assert not [status for status in statuses if status is not None and status >= 500]
    assert server.request("GET", "/")[0] == 200
    assert server.job.err.count("\n") == 1, server.job.err


def test_every_answer_says_how_it_is_to_be_shown(server):
    for path in ("/", "/app.js", "/nothing", "/api/history"):
        headers = server.request("GET", path)[2]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_only_files_of_the_page_are_given(server):
    for path in ("/../app.py", "/%2e%2e/app.py", "/static/app.js", "/app.py", "/etc/passwd"):
        assert server.request("GET", path)[0] == 404, path


def test_the_page_needs_nothing_from_elsewhere(server):
    text = server.request("GET", "/")[1].decode()

    assert "http://" not in text
    assert "https://" not in text


def test_jobs_are_shown_with_their_output_and_can_be_steered(server, submit):
    server.unlock()
    done = submit("--", "sh", "-c", "echo hello")
    held = submit("--hold", "--", "true")
    wait_for(lambda: server.request("GET", f"/api/job/{done}")[1]["state"] == "ended", "its end")

    job = server.request("GET", f"/api/job/{done}")[1]
    assert (job["reason"], job["attempts"][0]["status"]) == ("ok", 0)
    assert all("=" not in name for name in job["environment"])
    log = server.request("GET", f"/api/job/{done}/log")[1]
    assert (log["lines"], log["is_over"]) == ([[["hello", ""]], []], True)
    assert server.request("GET", f"/api/job/{done}/output")[1] == b"hello\n"
    assert [row["id"] for row in server.request("GET", "/api/history")[1]["jobs"]] == [done]
    assert server.request("GET", "/api/timeline")[1]["spans"][0]["job"] == done

    assert server.request("POST", f"/api/job/{held}/priority", {"priority": 7})[0] == 200
    assert server.request("GET", f"/api/job/{held}")[1]["priority"] == 7
    assert server.request("POST", f"/api/job/{held}/cancel", {})[0] == 200
    assert server.request("GET", f"/api/job/{held}")[1]["reason"] == "cancelled"
    again = server.request("POST", f"/api/job/{done}/retry", {})[1]
    assert again["first"] == held + 1


MISTAKES = [
    ("/api/job/999/cancel", {}, 404),
    ("/api/job/999/explode", {}, 404),
    ("/api/job/1/priority", {"priority": "high"}, 400),
    ("/api/job/1/priority", {"priority": 5000}, 400),
    ("/api/job/1/priority", {}, 400),
]


def test_a_mistake_is_an_answer_and_not_the_end(server, submit):
    server.unlock()
    submit("--hold", "--", "true")

    for path, body, status in MISTAKES:
        assert server.request("POST", path, body)[0] == status, (path, body)
        assert server.request("GET", "/api/history")[0] == 200


def test_the_stream_begins_with_a_picture_and_sends_another_when_it_changes(server, submit):
    server.unlock()
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    line.request("GET", "/api/stream", headers={"Authorization": f"Bearer {server.session}"})
    answer = line.getresponse()

    first = json.loads(answer.readline().removeprefix(b"data: "))
    assert [gpu["index"] for gpu in first["gpus"]] == [0, 1]
    assert first["jobs"] == []
    answer.readline()
    number = submit("--hold", "--name", "mine", "--", "true")
    said = first
    while not said["jobs"]:
        text = answer.readline()
        said = json.loads(text.removeprefix(b"data: ")) if text.startswith(b"data: ") else said
    assert [row["job"] for row in said["jobs"]] == [number]
    assert said["gpus"]
    line.close()


def test_it_ends_when_asked_to(server):
    server.job.signal(signal.SIGINT)

    assert server.job.wait().code in (0, 130)


def test_a_port_in_use_is_one_clear_line(server, story):
    ended = story.start(*GRN, "web", "--port", str(server.port)).wait()

    assert ended.code == 4
    assert "cannot be used" in ended.err


def test_numbers_are_for_a_session_or_for_whoever_has_their_secret(story, negotiator):
    negotiator("virtual:2x1GiB")
    (story.folder / "token").write_text("0123456789abcdef\n")
    job = story.start(*GRN, "web", "--metrics-token", "token", cwd=story.folder)
    link = wait_for(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/#link=\S+", job.out), "a link")
    server = Server(job, int(link[1]), link[0])

    assert server.request("GET", "/metrics")[0] == 401
    assert server.request("GET", "/metrics", Authorization="Bearer ")[0] == 401
    assert server.request("GET", "/metrics", Authorization="Bearer 0123456789abcdee")[0] == 401
    reader = {"Authorization": "Bearer 0123456789abcdef"}
    status, text, _ = server.request("GET", "/metrics", **reader)
    assert status == 200
    assert b'grn_up{source="negotiator"} 1' in text
    assert server.request("GET", "/api/history", **reader)[0] == 401
    server.unlock()
    assert server.request("GET", "/metrics")[0] == 200


@pytest.mark.parametrize("secret", [None, "short", ""])
def test_a_secret_that_is_none_is_one_clear_line(story, secret):
    if secret is not None:
        (story.folder / "token").write_text(secret)

    ended = story.start(*GRN, "web", "--metrics-token", "token", cwd=story.folder).wait()

    assert ended.code == 2
    assert "token" in ended.err


def test_the_standing_link_opens_many_sessions_and_ends_with_the_page(server, story):
    said = story.start(*GRN, "web", "--link").ended_well().out.strip()
    assert said.startswith(f"{server.url}/#link=")
    link = said.partition("#link=")[2]
    files = list(story.folder.glob("state/web/link-*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600]
    for _ in range(3):
        status, answer, _ = server.request("POST", "/api/session", {"link": link})
        server.session = answer["session"]
        assert status == 200
        assert server.request("GET", "/api/timeline")[0] == 200

    server.job.process.send_signal(signal.SIGTERM)
    server.job.wait()
    assert not list(story.folder.glob("state/web/link-*"))
    refused = story.start(*GRN, "web", "--link")
    assert refused.wait() != 0
    assert "no `grn web` of yours runs" in refused.err


def test_totals_are_real_and_a_filter_finds_what_the_list_leaves_out(server, submit):
    submit("--hold", "-q", "--array", "0-2499", "--name", "grid", "--", "true")
    submit("--hold", "--name", "needle", "--", "true")
    server.unlock()

    def jobs(words: str) -> dict[str, object]:
        return server.request("GET", f"/api/jobs?match={words}&most=300")[1]

    all_of_them = wait_for(lambda: (said := jobs("")) and said["waiting"] == 2501 and said, "all")
    assert [(row["name"], row["count"]) for row in all_of_them["jobs"]] == [
        ("grid[0-2499]", 2500),
        ("needle", 1),
    ]
    found = jobs("needle")
    assert [row["name"] for row in found["jobs"]] == ["needle"]
    assert found["waiting"] == 1
    assert jobs("nothing%20such")["jobs"] == []


def test_history_is_sorted_and_filtered_by_the_queue(server, submit):
    for name in ("b", "a", "c"):
        submit("--hold", "--name", name, "--", "true")
    server.unlock()
    server.request("POST", "/api/jobs/cancel", {"jobs": "1-3"})

    def names(query: str) -> list[str]:
        status, said, _ = server.request("GET", f"/api/history?{query}")
        assert status == 200
        return [row["name"] for row in said["jobs"]]

    wait_for(lambda: len(names("")) == 3, "the cancelled jobs")
    assert names("sort=name&ascending=1") == ["a", "b", "c"]
    assert names("sort=id") == ["c", "a", "b"]
    assert server.request("GET", "/api/history?most=1")[1]["total"] == 3
    assert server.request("GET", "/api/history?sort=argv")[0] == 400


def test_failed_jobs_are_found_until_they_are_run_again(server, submit, story):
    number = submit("--name", "bad", "--", "sh", "-c", "test -e fine")
    submit("--", "true")
    story.start(*GRN, "wait", "--all").wait()
    server.unlock()

    assert server.request("GET", "/api/failed")[1] == {"jobs": str(number), "count": 1}
    assert server.request("GET", "/api/failed?match=other")[1]["count"] == 0
    story.write("fine", "")
    status, said, _ = server.request("POST", "/api/jobs/retry", {"jobs": str(number)})
    assert (status, said["count"]) == (200, 1)
    assert server.request("GET", "/api/failed")[1]["count"] == 0


def test_a_command_can_be_submitted_and_a_wrong_one_is_refused(server, submit):
    submit("--", "true")  # the queue runs, and is stopped afterwards
    server.unlock()
    wrong = [{}, {"command": " "}, {"command": 7}, {"command": "true", "gpus": "two"}]
    assert [server.request("POST", "/api/submit", body)[0] for body in wrong] == [400] * 4
    assert server.request("POST", "/api/submit", {"command": "true", "mem": "much"})[0] == 409

    body = {"command": "echo $((6 * 7))", "name": "sum", "mem": "64MiB", "hold": False}
    status, said, _ = server.request("POST", "/api/submit", body)
    assert status == 200
    path = f"/api/job/{said['first']}/output"
    wait_for(lambda: server.request("GET", path)[1] == b"42\n", "its output")


def test_several_jobs_are_named_by_ranges(server, submit):
    for _ in range(3):
        submit("--hold", "--", "true")
    server.unlock()
    assert server.request("POST", "/api/jobs/cancel", {"jobs": "x"})[0] == 400
    assert server.request("POST", "/api/jobs/cancel", {})[0] == 400
    assert server.request("POST", "/api/jobs/eat", {"jobs": "1"})[0] == 404
    assert server.request("POST", "/api/jobs/cancel", {"jobs": "1,3"})[1]["cancelled"] == [1, 3]


def now(server: Server) -> dict[str, Any]:
    """Return the first picture of the stream."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    line.request("GET", "/api/stream", headers={"Authorization": f"Bearer {server.session}"})
    text = line.getresponse().readline().removeprefix(b"data: ")
    line.close()
    found: dict[str, Any] = json.loads(text)
    return found


def test_bookings_are_shown_and_removed(server, story):
    server.unlock()
    story.start(*GRN, "book", "--from", "now+10h", "--for", "1h").ended_well()

    (row,) = now(server)["bookings"]
    assert (row["gpus_asked"], row["state"], len(row["gpus"])) == (1, "ahead", 1)
    for wrong in (None, "1", -1, True):
        assert server.request("POST", "/api/unbook", {"booking": wrong})[0] == 400
    assert server.request("POST", "/api/unbook", {"booking": row["id"] + 1})[0] == 404
    assert server.request("POST", "/api/unbook", {"booking": row["id"]})[0] == 200
    wait_for(lambda: not now(server)["bookings"], "the booking to be gone")


def test_short_jobs_do_not_hide_a_long_one_from_the_timeline(server, submit, story):
    submit("--name", "long", "--mem", "16MiB", "--", "sleep", "0.5")
    story.start(*GRN, "wait", "--all").ended_well()
    submit("--name", "short", "-q", "--mem", "16MiB", "--array", "0-4", "--", "true")
    story.start(*GRN, "wait", "--all").ended_well()
    asked = "from grn.cli.web.queries import timeline as t; "
    asked += "print(*[(sorted({r.name for r in t(0.0, n)[0]}), t(0.0, n)[1]) for n in (3, 9)])"

    ended = story.start(sys.executable, "-c", asked).ended_well()
    assert ended.out.strip() == "(['long', 'short'], True) (['long', 'short'], False)"


def test_the_row_of_a_long_array_follows_what_is_left_of_it(server, submit, story):
    submit("--hold", "-q", "--array", "0-2999", "--name", "grid", "--", "true")
    server.unlock()
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    line.request("GET", "/api/stream", headers={"Authorization": f"Bearer {server.session}"})
    stream = line.getresponse()

    def next_rows() -> list[tuple[str, int]]:
        while not (text := stream.fp.readline()).startswith(b"data: "):
            pass
        return [(row["name"], row["count"]) for row in json.loads(text[6:])["jobs"]]

    wait_for(lambda: next_rows() == [("grid[0-2999]", 3000)], "the whole array")
    story.start(*GRN, "cancel", "2001-2100").ended_well()
    wait_for(lambda: next_rows() == [("grid[0-1999,2100-2999]", 2900)], "what is left")
    line.close()
