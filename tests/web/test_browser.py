"""The page in a real browser: each view, live changes, actions, hostile names, narrow and dark."""

from __future__ import annotations

import random
import re

import pytest

from grn.model.units import show_size
from tests.harness import DEADLINE_S, GRN, wait_for

pytestmark = pytest.mark.slow
HOSTILE = [
    "<b>bold</b><img src=x onerror=alert(1)>",
    "</td><script>alert(1)</script>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "\u202eevil\u200b",
]


def test_now_shows_gpus_and_follows_what_changes(page, submit, story):
    page.wait_for_selector("section[aria-label='GPU 1']")
    page.wait_for_selector("text=No job runs or waits.")
    page.wait_for_selector("#pulse.good:has-text('Live')")

    gate = story.gate("go")
    number = submit(
        "--mem",
        "64MiB",
        "--type",
        "my type",
        "--",
        "python3",
        "-c",
        "from act import gate; gate('go')",
    )
    page.wait_for_selector(f"a[href='#/job/{number}']")
    page.wait_for_selector(f"section a[href='#/job/{number}']")
    assert page.locator(f"tbody a[href='#/job/{number}']").count() == 1
    page.wait_for_selector(".figure.good:has-text('running'):has-text('1')")
    page.wait_for_selector(".memory:has-text('/ 64 MiB')")
    gate.open()
    page.wait_for_selector("text=No job runs or waits.")


def test_a_job_can_be_held_and_cancelled_from_the_page(page, submit):
    number = submit("--after", str(submit("--hold", "--", "true")), "--", "true")
    page.click(f"[data-key='hold-{number}']")
    page.wait_for_selector(f"[data-key='release-{number}']")
    page.click(f"[data-key='cancel-{number}']")
    page.click("dialog >> text=Cancel job")
    page.wait_for_selector(f"a[href='#/job/{number}']", state="detached")


def test_cancel_asks_by_name_and_time_and_tells_afterwards(page, submit, story):
    story.gate("go")
    command = ("python3", "-c", "from act import gate; gate('go')")
    number = submit("--mem", "64MiB", "--name", "gpt2 seed 1", "--", *command)
    page.wait_for_selector(".pill.running")
    page.click(f"[data-key='cancel-{number}']")

    assert "Cancel gpt2 seed 1?" in page.inner_text("dialog")
    assert "It has run for" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.is_visible(f"[data-key='cancel-{number}']")

    page.click(f"[data-key='cancel-{number}']")
    page.click("dialog >> text=Keep running")
    page.click(f"[data-key='cancel-{number}']")
    page.click("dialog >> text=Cancel job")
    page.wait_for_selector("#toasts >> text=Cancelled gpt2 seed 1")
    page.wait_for_selector(f"a[href='#/job/{number}']", state="detached")


def test_hostile_names_are_only_text(page, submit):
    for name in HOSTILE:
        submit("--hold", "--name", name, "--", "echo", name)
    wait_for(lambda: page.locator("[data-key^=release]").count() == len(HOSTILE), "all of them")

    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.scripts.length") == 1
    assert (
        page.evaluate("document.querySelectorAll('main section b').length") == 2
    )  # GPU 0 and GPU 1
    assert "\\u202e" in page.inner_text("main")
    attributes = page.evaluate(
        "[...document.querySelectorAll('main *')].flatMap(e => e.getAttributeNames())"
    )
    assert not [name for name in attributes if name.startswith("on")]


def test_a_job_has_its_output_and_its_attempts(page, submit, server):
    number = submit("--", "sh", "-c", "echo hello from the job")
    page.goto(f"{server.url}/#/job/{number}")

    page.wait_for_selector("pre.log:has-text('hello from the job')")
    page.wait_for_selector("h1:has-text('ok')")
    assert "Environment" in page.inner_text("main")


def test_output_is_shown_as_a_terminal_shows_it_and_can_be_searched_and_saved(page, submit, server):
    bar = "  1%%|    \\r 50%%|##  \\r100%%|####\\n"
    program = f"printf '\\033[32mgreen\\033[0m start\\n{bar}last line\\n'"
    number = submit("--name", "my run", "--", "sh", "-c", program)
    page.goto(f"{server.url}/#/job/{number}")

    page.wait_for_selector("h1:has-text('my run')")
    page.wait_for_selector("pre.log:has-text('last line')")
    shown = page.text_content("pre.log").splitlines()
    assert [line for line in shown if line] == ["green start", "100%|####", "last line"]
    look = "getComputedStyle(document.querySelector('pre.log span')).color"
    assert page.evaluate(look) != page.evaluate("getComputedStyle(document.body).color")
    page.fill("input[aria-label='search in the output']", "LAST")
    assert page.text_content("pre.log .hit.current").strip() == "last line"
    assert page.is_visible("text=1 of 1 line")
    page.fill("input[aria-label='search in the output']", "nowhere")
    assert page.is_visible("text=Not found")
    with page.expect_download() as saved:
        page.click("text=Download")
    assert b"\x1b[32mgreen" in saved.value.path().read_bytes()


def test_the_other_views_show_what_was(page, submit, server, story):
    number = submit("--", "sh", "-c", "sleep 2")
    page.goto(f"{server.url}/#/history")
    page.wait_for_selector("h1:has-text('History')")
    wait_for(lambda: page.reload() or page.query_selector(f"a[href='#/job/{number}']"), "the job")
    page.goto(f"{server.url}/#/timeline")
    page.wait_for_selector("svg.gantt rect[tabindex]")
    bar, said = "svg.gantt rect.bar-of-job", "#tip:has-text('peak')"
    wait_for(lambda: page.hover(bar) or page.is_visible(said), "a bar, which moves with the time")
    page.set_viewport_size({"width": 390, "height": 844})
    scale = "document.querySelector('svg.gantt')?.getScreenCTM().a"
    wait_for(lambda: (page.evaluate(scale) or 0) > 0.9, "a drawing one can read on a phone")
    page.goto(f"{server.url}/#/profiles")
    page.wait_for_selector("section.card")
    page.goto(f"{server.url}/#/sweeps")
    page.wait_for_selector("text=No sweep here yet")


def test_a_week_of_bookings_is_drawn_and_one_can_be_removed(page, server, story):
    page.goto(f"{server.url}/#/bookings")
    page.wait_for_selector("text=Nothing is booked in this week.")
    story.start(*GRN, "book", "-g", "2", "--from", "now+1h", "--for", "20h").ended_well()
    wait_for(lambda: page.locator("svg.week rect[tabindex]").count() == 2, "a bar on each GPU")
    page.goto(f"{server.url}/#/now")
    page.wait_for_selector("section[aria-label='GPU 1'] >> text=Booked for")
    page.click("text=Booked for >> nth=0")
    page.hover("svg.week rect[tabindex] >> nth=0")
    page.wait_for_selector("#tip:has-text('booking 1')")
    page.click("text=Remove")
    page.click("dialog >> text=Remove >> nth=-1")
    page.wait_for_selector("text=Nothing is booked. Book GPUs with")


def test_a_second_tab_works_and_a_used_link_says_what_to_do(page, server, chromium):
    page.wait_for_selector("section.card")
    second = page.context.new_page()
    second.goto(f"{server.url}/#/history")
    second.wait_for_selector("h1:has-text('History')")
    other = chromium.new_context().new_page()
    other.goto(server.link)

    other.wait_for_selector("text=This page is locked")
    assert "grn web" in other.inner_text("main")
    other.context.close()


def test_all_is_reached_by_keyboard_and_who_is_gone_is_told(page, server, story):
    page.wait_for_selector("section.card")
    seen = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent"))
    assert {"Now", "Timeline", "History", "Profiles", "Sweeps"} <= seen

    page.wait_for_selector("#pulse.good")
    story.start(*GRN, "stop").ended_well()
    page.wait_for_selector("#pulse.bad:has-text('No negotiator answers')")
    server.job.kill()
    page.wait_for_selector("#pulse.bad:not(:has-text('No negotiator answers'))")


def test_sizes_times_axes_and_readings_are_spelled_as_the_terminal_spells_them(page):
    sizes = [None, 0, 1, 1023, (1 << 20) - 1, 1 << 20, (1 << 30) - 1, 3 << 29, (1 << 40) - 1]
    spelled = "async ([name, all]) => all.map((await import('/dom.js'))[name])"

    assert page.evaluate(spelled, ["size", sizes]) == [show_size(size) for size in sizes]
    assert page.evaluate(spelled, ["span", [9.96, 59.7, 119.8, 3599.7, 86399.9]]) == [
        *("10 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "1 d 0 h")
    ]
    expected = "async (s) => { const at = Date.now() / 1000; return " \
        "(await import('/dom.js')).soon(s.map((one) => at + one)).textContent }"  # fmt: skip
    assert page.evaluate(expected, [61, 245]) == "in 2 min"
    assert page.evaluate(expected, [0, 2]) == "soon"

    ticks = "async ([length, most]) => (await import('/draw.js')).timeTicks(length, most)"
    round_spans = "async (all) => all.map((await import('/draw.js')).roundSpan)"

    assert page.evaluate(ticks, [1100, 8]) == [0, 300, 600, 900]
    assert page.evaluate(ticks, [119, 4]) == [0, 30, 60, 90]
    assert page.evaluate(round_spans, [0, 90, 600, 5400, 86400]) == [
        *("0", "1 min 30 s", "10 min", "1 h 30 min", "1 d")
    ]

    said = "async (gpu) => (await import('/now.js')).readings(gpu)"

    known = {"load_pct": 33.7, "temperature_c": 61, "power_w": 248, "clock_mhz": 1410}
    assert page.evaluate(said, known) == "61 °C · 248 W · 1410 MHz · 34 % busy"
    assert page.evaluate(said, {"load_pct": None, "temperature_c": None}) == ""


def test_a_phone_shows_why_a_job_failed_and_no_empty_columns(page, submit, server):
    submit("--hold", "--", "true")
    submit("--name", "broken", "--", "sh", "-c", "exit 3")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector(".pill.held")
    assert not page.locator("tr:has(.pill.held) td.gpu").is_visible()
    asked = "(await import('/app.js')).ask('/api/history?most=1&skip=0&match=broken')"
    wait_for(lambda: page.evaluate(f"async () => (await {asked}).jobs.length"), "its end")
    page.goto(f"{server.url}/#/history")
    page.reload()
    page.wait_for_selector("text=Exit status 3")


def test_the_first_names_and_the_jobs_of_a_gpu_keep_colours_of_their_own(page):
    found = "async (all) => all.map((await import('/dom.js')).colour)"
    names = [f"kind {number}" for number in range(8)]

    colours = page.evaluate(found, names)
    assert len(set(colours)) == len(names)
    assert page.evaluate(found, names) == colours

    tones = "async (all) => (await import('/now.js')).tones(all, 'node')"
    leases = [{"id": str(number), "gpus": [number % 2]} for number in range(16)]

    found = page.evaluate(tones, leases)

    assert len(set(found[::2])) == len(set(found[1::2])) == 8
    assert page.evaluate(tones, leases[4:]) == found[4:]


def test_it_fits_a_phone_in_both_schemes(page, submit):
    submit("--hold", "--name", "a name that is rather long for a phone " * 3, "--", "true")
    page.set_viewport_size({"width": 390, "height": 844})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector("text=rather long")

        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        pill = page.locator("tbody .pill").first.bounding_box()
        assert pill["x"] + pill["width"] <= 390
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", back)[:3])) / 3
        assert (light > 128) == (scheme == "light")


def test_a_job_that_runs_shows_its_memory_and_how_busy_its_gpu_is(page, submit, server, story):
    gate = story.gate("go")
    command = "import time; kept = bytearray(64 << 20); from act import gate; gate('go')"
    number = submit("--", "python3", "-c", command)
    page.goto(f"{server.url}/#/job/{number}")

    page.wait_for_selector("svg[aria-label='memory over time']")
    page.wait_for_selector("svg[aria-label='how busy its GPUs were']")
    assert "reserved" in page.text_content("svg[aria-label='memory over time']")
    page.wait_for_selector("dd:has-text('used, ')")
    gate.open()
    page.wait_for_selector("h1:has-text('ok')")


def test_a_sweep_has_its_pictures_and_its_runs(page, server, story):
    command = """python3 -c "print('{{\\"loss\\": {lr}}}')\""""
    words = ("sweep", command, "-p", "lr", "0.1", "0.2", "0.4", "--name", "mine", "-q")
    story.start(*GRN, *words, cwd=story.folder).ended_well()
    page.goto(f"{server.url}/#/sweeps")
    page.click("a:has-text('mine')")

    page.wait_for_selector("svg.dots circle")
    assert page.locator("svg.dots circle.run").count() == 3
    page.wait_for_selector("svg.lines path.best", state="attached")
    assert "0.1" in page.inner_text("tr.first")  # the best is first
    page.hover("tr.first")
    page.wait_for_selector("path.best.here", state="attached")
    assert page.evaluate("document.scripts.length") == 1

    page.click("th:has-text('loss')")
    page.wait_for_selector("th[aria-sort='ascending']")
    page.focus("th:has-text('loss')")
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort='descending']")
    assert page.locator("tbody tr td:nth-child(2)").all_inner_texts() == ["0.4", "0.2", "0.1"]
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector("svg.narrow")
    assert page.locator("svg.narrow text").first.bounding_box()["height"] >= 11


def test_a_failed_run_of_a_sweep_leads_to_its_job(page, server, story):
    command = """python3 -c "assert {lr} < 1; print('{{\\"loss\\": {lr}}}')\""""
    words = ("sweep", command, "-p", "lr", "0.1", "2", "--name", "mine", "-q")
    story.start(*GRN, *words, cwd=story.folder).wait()
    page.goto(f"{server.url}/#/sweep/mine")

    page.click("a:has-text('lr=2')")
    page.wait_for_selector(".pill.failed")
    assert page.locator("tbody tr").count() == 1


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.soak)])
def test_thousands_of_hostile_commands_make_no_node_and_no_handler(
    page, submit, server, story, script, count
):
    """Jobs that never run: some while they are held, all of them once they are cancelled."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    pieces = [
        *("<", ">", '"', "'", "&", "`", "=", "/", "&lt;", "é", "名", "\u202e", "\u200b", "\u2066"),
        *("<img src=x onerror=alert(1)>", "</td>", "<svg onload=alert(1)>", "javascript:"),
        *("<script>alert(1)</script>", "onclick=alert(1)", "</style>", "{{1}}", "\x1b[31m", "\x9b"),
    ]
    lines = [
        f"part{number * 10 // count} "
        + "".join(dice.choice(pieces) for _ in range(dice.randrange(1, 6)))
        for number in range(count)
    ]
    path = story.write("hostile", "\n".join(lines))
    submit("--hold", "-q", "--lines", path)
    wait_for(lambda: page.locator("[data-key^=release]").count() >= 200, "a full list of them")
    page.wait_for_selector(f"text=200 of {count:,} jobs shown.")
    _is_harmless(page)

    story.start(*GRN, "cancel", "--all", "--now").ended_well()
    page.goto(f"{server.url}/#/history")
    page.wait_for_selector(f"text=1 to 200 of {count:,} jobs")
    for part in range(10):
        page.fill("input[type=search]", f"part{part} ")
        rows = "[...document.querySelectorAll('tbody tr')]"
        shown = f"{rows}.filter(row => row.textContent.includes('part{part} ')).length"
        left = count // 10
        while left:
            some = min(left, 200)
            wait_for(lambda: page.evaluate(shown) == some, f"part {part} of them")  # noqa: B023
            _is_harmless(page)
            left -= some
            if left:
                page.click("[aria-label='next page']")

    story.start(*GRN, "queue", "stop").ended_well()
    page.reload()
    page.wait_for_selector("text=Your queue does not run")


def test_several_jobs_are_selected_and_cancelled_at_once(page, submit):
    for name in ("one", "two", "three"):
        submit("--hold", "--name", name, "--", "true")
    page.check("[aria-label='select one']")
    page.check("[aria-label='select three']")
    page.click("[data-key=all-cancel]")
    page.click("dialog button:has-text('Cancel 2 jobs')")
    page.wait_for_selector("#toasts >> text=Cancelled 2 jobs.")
    wait_for(lambda: page.locator("tbody tr").count() == 1, "the one that is left")
    assert "two" in page.inner_text("tbody")


def test_an_array_is_one_row_and_the_filter_finds_one_of_it(page, submit):
    submit("--hold", "-q", "--array", "0-49", "--name", "grid", "--", "true")
    submit("--hold", "--name", "other", "--", "true")
    page.wait_for_selector("a:has-text('grid[0-49]')")
    page.wait_for_selector(".pill:has-text('50 held')")
    page.wait_for_selector("text=51 jobs.")
    page.fill("[aria-label='filter jobs']", "other")
    page.wait_for_selector("a:has-text('grid')", state="detached")
    page.wait_for_selector("text=1 job.")


def test_thousands_of_waiting_jobs_are_counted_and_take_little_time(chromium, server, submit):
    submit("--hold", "-q", "--array", "0-4999", "--name", "grid", "--", "true")
    page = chromium.new_page()
    page.set_default_timeout(DEADLINE_S * 1000)
    measured = page.context.new_cdp_session(page)
    measured.send("Performance.enable", {"timeDomain": "threadTicks"})  # its own CPU time

    page.goto(server.link)
    page.wait_for_selector("a:has-text('grid[')")
    page.wait_for_selector(".figure:has-text('5,000'):has-text('waiting')")

    metrics = measured.send("Performance.getMetrics")["metrics"]
    spent = {row["name"]: row["value"] for row in metrics}
    assert spent["TaskDuration"] < 1
    assert page.locator("tbody tr").count() < 20

    page.fill("input[aria-label='filter jobs']", "grid[4")  # most are in no feed
    page.wait_for_selector("a:has-text('4000-4999]')")
    page.wait_for_selector("text=1,111 jobs.")
    page.close()


def test_every_job_of_a_long_array_is_reached_by_pages_filter_and_state(page, submit):
    last = submit("--hold", "-q", "--array", "0-2999", "--name", "grid", "--", "true")
    page.wait_for_selector(".pill:has-text('3,000 held')")  # most are in no feed
    page.click("a:has-text('grid[0-2999]')")
    page.wait_for_selector("text=1 to 200 of 3,000 jobs")
    assert page.locator("tbody tr").count() == 200

    page.click("[aria-label='last page']")
    page.wait_for_selector("a:has-text('grid[2999]')")
    page.click("[aria-label='page before']")
    page.wait_for_selector("text=2,601 to 2,800 of 3,000 jobs")
    page.fill("input[aria-label='filter jobs of the array']", "grid[29")
    page.wait_for_selector("text=111 jobs.")

    page.click("[data-key=array-cancel]")
    page.click("dialog >> text=Cancel 111 jobs")
    page.wait_for_selector(".chip:has-text('cancelled'):has-text('111')")
    page.fill("input[aria-label='filter jobs of the array']", "")
    page.click("[data-key=state-cancelled]")
    page.wait_for_selector("a:has-text('grid[2999]')")
    page.wait_for_selector("text=111 jobs.")
    page.click(f"[data-key=job-{last - 2999 + 29}]")
    page.wait_for_selector("h1:has-text('grid[29]')")
    page.click("text=all jobs of its array")
    page.wait_for_selector(".chip:has-text('held'):has-text('2,889')")


def test_history_has_pages(page, submit, server, story):
    submit("--hold", "-q", "--array", "0-449", "--name", "grid", "--", "true")
    story.start(*GRN, "cancel", "--all").ended_well()
    page.goto(f"{server.url}/#/history")
    page.wait_for_selector("text=1 to 200 of 450 jobs")
    page.click("text=Id >> nth=0")
    seen = set()
    for there in ("1 to 200", "201 to 400", "401 to 450"):
        page.wait_for_selector(f"text={there} of 450 jobs")
        seen |= set(page.locator("td.name a").all_inner_texts())
        if page.is_enabled("[aria-label='next page']"):
            page.click("[aria-label='next page']")
    assert seen == {f"grid[{index}]" for index in range(450)}


def test_a_waiting_job_says_why_and_that_it_has_no_output(page, submit, server):
    number = submit("--hold", "--", "true")
    page.goto(f"{server.url}/#/job/{number}")
    page.wait_for_selector("text=Held: run")
    page.wait_for_selector("pre.log.none[data-none='No output yet.']")
    assert page.locator("dt:has-text('Reason')").count() == 0


def test_failed_jobs_are_run_again_from_history(page, submit, server, story):
    submit("--name", "bad", "--", "sh", "-c", "exit 3")
    story.start(*GRN, "wait", "--all").wait()
    page.goto(f"{server.url}/#/history")
    page.wait_for_selector("tr:has-text('Exit status 3') .pill.failed")
    assert page.get_attribute("td.when time", "title")
    page.click("text=Run all failed again")
    page.click("dialog >> text=Run 1 job again")
    page.wait_for_selector("#toasts >> text=submitted again")


def test_a_job_is_submitted_by_the_form(page, submit):
    submit("--", "true")
    page.click("text=Submit a job")
    page.fill("dialog [name=command]", "true")
    page.fill("dialog [name=mem]", "much")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .trouble")
    page.fill("dialog [name=mem]", "64MiB")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("#toasts >> text=Submitted as job 2.")
    page.wait_for_selector("dialog", state="detached")


def test_the_timeline_has_few_lanes_round_times_and_a_true_period(page, submit, server, story):
    submit("--mem", "16MiB", "-q", "--array", "0-39", "--", "true")
    story.start(*GRN, "wait", "--all").ended_well()
    page.goto(f"{server.url}/#/timeline")
    page.wait_for_selector("svg.gantt rect[tabindex]")
    assert page.evaluate("document.querySelector('svg.gantt').getBoundingClientRect().height") < 320
    times = page.evaluate(
        "async () => (await import('/timeline.js')).roundTimes(1000003, 1003603, 6)"
    )
    assert times["step"] == 600
    assert all(at % 600 == 0 for at in times["times"])
    page.select_option("select", "3600")
    page.hover("svg.gantt")
    page.mouse.wheel(0, -100)
    wait_for(lambda: page.input_value("select") == "own", "a period of its own")
    assert page.inner_text("select option[value=own]") == "48 min 0 s"


def test_the_timeline_marks_what_failed(page, submit, server, story):
    for line in ("sleep 2", "sleep 2; exit 3"):
        submit("--mem", "16MiB", "--", "sh", "-c", line)
    story.start(*GRN, "wait", "--all").wait()
    page.goto(f"{server.url}/#/timeline")
    page.wait_for_selector("svg.gantt rect.bar-of-job >> nth=1")
    assert page.locator("svg.gantt rect.failed-end").count() == 1
    assert "red end: failed" in page.inner_text(".timeline .legend")


def test_a_profile_is_explained_and_can_be_forgotten(page, submit, server, story):
    submit("--type", "mine", "--", "sh", "-c", "sleep 0.3; exit 1")
    submit("--type", "mine", "--", "sh", "-c", "sleep 0.3")
    story.start(*GRN, "wait", "--all").wait()
    page.goto(f"{server.url}/#/profiles")
    page.wait_for_selector("section[aria-label=mine]")
    assert "Counts for the estimate" in page.inner_text("section[aria-label=mine]")
    assert "Failed or cut short" in page.inner_text("section[aria-label=mine]")
    page.click("text=Forget")
    page.click("dialog >> text=Forget >> nth=-1")
    page.wait_for_selector("section[aria-label=mine]", state="detached")


def _is_harmless(page) -> None:
    """Find nothing in the page that text has made, and nothing in its text that hides."""
    made = "document.querySelectorAll('main img, main script, main style, main svg[onload]').length"
    assert page.evaluate(made) == 0
    handlers = "[...document.querySelectorAll('main *')].flatMap(e => e.getAttributeNames())"
    assert not [name for name in page.evaluate(handlers) if name.startswith("on")]
    text = page.evaluate("document.querySelector('main').textContent")
    assert not re.search(
        "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text
    )
