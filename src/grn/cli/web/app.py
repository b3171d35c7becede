"""The routes of the page: files without a session, data and actions only with one.

Actions go to the user's own queue, which knows no other user's jobs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from grn.cli.output import html, metrics
from grn.cli.report import sweep_page
from grn.cli.web import arrays, job_list, queries
from grn.cli.web.queries import Row, Sweeps, settle
from grn.cli.web.security import HEADERS, RequestGuard
from grn.cli.web.watchers import Watchers
from grn.client import queue
from grn.client.negotiator import ask_once
from grn.client.state_mirror import StateMirror
from grn.client.submit import submit
from grn.errors import GrnError, UnknownJob, UsageError
from grn.model import MAX_PRIORITY
from grn.model.ranges import parse_ranges, show_ranges

MAX_BODY_BYTES = 4096
MAX_BODY_OPENINGS = 16  # brackets and braces: no body is deeper
MAX_JOB_DIGITS = 18  # what fits in a column of the journal
MAX_IDS_BYTES = 256 << 10  # a list of jobs as ranges
MAX_SUBMIT_BYTES = 64 << 10
MAX_LISTED = 10_000
MAX_PAGE = 1000  # jobs of an array, or that have ended, in one answer
MAX_SKIP = 100_000_000
MAX_MATCH = 512  # characters of a filter
SORTS = ("id", "name", "ran", "peak", "gpu", "reason", "ended")
SUBMIT_OPTIONS: dict[str, type] = {
    "command": str, "name": str, "cwd": str, "mem": str, "time_limit": str, "gpus": int,
    "priority": int, "retry": int, "hold": bool,
}  # fmt: skip
MAX_STYLE = 64  # characters of an SGR sequence
KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
SWEEP_STYLE, SWEEP_SCRIPT = "sweep-page.css", "sweep-page.js"
Handler = Callable[[Request], Awaitable[Response]]


class _BadBody(UsageError):
    """The body of a request is invalid."""


class Page:
    """The application; `guard` decides about access."""

    def __init__(self, guard: RequestGuard, sweeps: Sweeps) -> None:
        self._guard = guard
        self._sweeps = sweeps
        self._watchers = Watchers()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        read, write = ["GET"], ["POST"]
        routes = [
            Route("/api/session", self._open(self.session), methods=write),
            Route("/api/stream", self._closed(self.stream), methods=read),
            Route("/api/jobs", self._closed(self.jobs), methods=read),
            Route("/api/jobs/{act}", self._closed(self.act_on_several), methods=write),
            Route("/api/failed", self._closed(self.failed), methods=read),
            Route("/api/submit", self._closed(self.submit), methods=write),
            Route("/api/forget", self._closed(self.forget), methods=write),
            Route("/api/history", self._closed(self.history), methods=read),
            Route("/api/timeline", self._closed(self.timeline), methods=read),
            Route("/api/unbook", self._closed(self.unbook), methods=write),
            Route("/api/profiles", self._closed(self.profiles), methods=read),
            Route("/api/sweeps", self._closed(self.sweeps), methods=read),
            Route("/api/sweep", self._closed(self.sweep), methods=read),
            Route("/api/job/{job}", self._closed(self.job), methods=read),
            Route("/api/job/{job}/log", self._closed(self.log), methods=read),
            Route("/api/job/{job}/output", self._closed(self.output), methods=read),
            Route("/api/job/{job}/{act}", self._closed(self.act), methods=write),
            Route("/api/array/{job}", self._closed(self.array), methods=read),
            Route("/api/array/{job}/ids", self._closed(self.array_ids), methods=read),
            Route("/api/lease/{lease}", self._closed(self.lease), methods=read),
            Route("/metrics", self._open(self.metrics), methods=read),
            Route("/{name:path}", self._open(self.file), methods=read),
        ]
        return Starlette(routes=routes)

    # --- access ---------------------------------------------------------------------

    def _open(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            refusal = self._guard.refusal(request.method, request.headers)
            response = _error(403, refusal) if refusal else await _answer(handler, request)
            response.headers.update(HEADERS)
            return response

        return answer

    def _closed(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            if not self._guard.knows(request.headers.get("authorization", "")):
                return _error(401, "this page has no session: open the link that `grn web` prints")
            return await handler(request)

        return self._open(answer)

    async def session(self, request: Request) -> Response:
        """Open a session with a link, which is used up by that."""
        link = (await _body(request)).get("link")
        if not isinstance(link, str):
            raise _BadBody("a session is opened with a link")
        secret = secrets.token_urlsafe(32)
        if not self._guard.open_session(link, secret):
            return _error(401, "this link was used already: run `grn web` again for another")
        return JSONResponse({"session": secret})

    # --- reading ------------------------------------------------------------

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"] or "index.html"
        folder = resources.files("grn.cli.web") / "static"
        known = {entry.name: entry for entry in folder.iterdir()}
        if name == SWEEP_STYLE:
            return Response(_sweep_style(), media_type="text/css; charset=utf-8")
        if name == SWEEP_SCRIPT:
            return Response(f"export {sweep_page.SCRIPT.strip()}\n", media_type="text/javascript")
        kind = KINDS.get(name[name.rfind(".") :]) if "." in name else None
        if name not in known or kind is None:
            return _error(404, "there is no such page")
        return Response(known[name].read_bytes(), media_type=f"{kind}; charset=utf-8")

    async def stream(self, request: Request) -> Response:
        """Send the machine as it is, at most twice a second, and only when it has changed."""

        async def events() -> AsyncIterator[bytes]:
            before: Row | None = None
            async for picture in self._watchers.pictures():
                is_news, before = picture != before, picture
                text = b"data: " + json.dumps(picture).encode() if is_news else b": still here"
                yield text + b"\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def jobs(self, request: Request) -> Response:
        """Return the jobs that run and wait and match a filter."""
        most = min(MAX_LISTED, _number(request, "most", job_list.MAX_ROWS))
        picture, match = self._watchers.picture, _match(request)
        return JSONResponse(await asyncio.to_thread(queries.jobs_of_queue, picture, match, most))

    async def history(self, request: Request) -> Response:
        most = min(MAX_PAGE, max(1, _number(request, "most", job_list.MAX_ROWS)))
        skip = min(MAX_SKIP, _number(request, "skip", 0))
        sort = request.query_params.get("sort", "ended")
        if sort not in SORTS:
            raise _BadBody(f"history is sorted by {', '.join(SORTS)}")
        is_ascending = request.query_params.get("ascending") == "1"
        match = _match(request)
        return JSONResponse(
            await asyncio.to_thread(queries.history, most, sort, is_ascending, match, skip)
        )

    async def failed(self, request: Request) -> Response:
        """Return the failed jobs that match and were not run again."""
        found = await asyncio.to_thread(queries.failed, _match(request))
        ids = show_ranges(found, len(found) or 1)
        return JSONResponse({"jobs": ids, "count": len(found)})

    async def timeline(self, request: Request) -> Response:
        since = float(_number(request, "since", 0))
        picture = self._watchers.picture
        past, is_partial = await asyncio.to_thread(queries.timeline, since)
        spans = queries.spans(picture, since, past)
        return JSONResponse({"spans": [span.row() for span in spans], "is_partial": is_partial})

    async def profiles(self, request: Request) -> Response:
        return JSONResponse({"profiles": await asyncio.to_thread(queries.profiles)})

    async def sweeps(self, request: Request) -> Response:
        return JSONResponse({"sweeps": await asyncio.to_thread(self._sweeps.all)})

    async def sweep(self, request: Request) -> Response:
        name, metric = (request.query_params.get(key, "") for key in ("name", "metric"))
        return JSONResponse(await asyncio.to_thread(self._sweeps.one, name, metric))

    async def job(self, request: Request) -> Response:
        number, picture = _job(request), self._watchers.picture
        return JSONResponse(await asyncio.to_thread(queries.job, picture, number))

    async def array(self, request: Request) -> Response:
        """Return a page of the jobs of an array."""
        query = request.query_params
        most = min(MAX_PAGE, max(1, _number(request, "most", job_list.MAX_ROWS)))
        skip = min(MAX_SKIP, _number(request, "skip", 0))
        asked = (_job(request), _match(request), query.get("state", ""), skip, most)
        picture = self._watchers.picture
        return JSONResponse(await asyncio.to_thread(arrays.page, picture, *asked))

    async def array_ids(self, request: Request) -> Response:
        """Return the jobs of an array that match and that an action is for."""
        act, state = request.query_params.get("for", ""), request.query_params.get("state", "")
        if act not in arrays.ACTS:
            raise _BadBody(f"an action is {', '.join(arrays.ACTS)}")
        asked = (_job(request), act, _match(request), state)
        return JSONResponse(await asyncio.to_thread(arrays.ids_for, *asked))

    async def lease(self, request: Request) -> Response:
        name, picture = request.path_params["lease"], self._watchers.picture
        row = await asyncio.to_thread(queries.lease, picture, name)
        return (
            _error(404, "this page has not seen that lease") if row is None else JSONResponse(row)
        )

    async def metrics(self, request: Request) -> Response:
        """Return the metrics, for a session or the metrics token."""
        if not self._guard.knows_reader(request.headers.get("authorization", "")):
            return _error(401, "the numbers need a token: see `grn web --metrics-token`")
        text = await asyncio.to_thread(_numbers)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def log(self, request: Request) -> Response:
        job, at, name = _job(request), _number(request, "from", 0), _stream(request)
        attempt = _number(request, "attempt", 0) or None
        style = request.query_params.get("style", "")[:MAX_STYLE]
        return JSONResponse(await asyncio.to_thread(queries.log, job, name, at, attempt, style))

    async def output(self, request: Request) -> Response:
        """Return all of a job's output as bytes, to be saved."""
        data = await asyncio.to_thread(queries.output, _job(request), _stream(request))
        return Response(data, media_type="application/octet-stream")

    # --- actions -----------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        """Cancel, hold, release, retry or move one of the user's own jobs."""
        return await self._act(request, [_job(request)], await _body(request))

    async def act_on_several(self, request: Request) -> Response:
        """Do the same with several jobs, which the body names as ranges."""
        body = await _body(request, MAX_IDS_BYTES)
        try:
            jobs = parse_ranges(str(body.get("jobs", "")))
        except UsageError as error:
            raise _BadBody(error.message) from error
        return await self._act(request, jobs, body)

    async def _act(self, request: Request, jobs: list[int], body: Row) -> Response:
        priority = body.get("priority")
        messages: dict[str, Row] = {
            "cancel": {"op": "cancel", "jobs": jobs, "now": False},
            "hold": {"op": "hold", "jobs": jobs, "held": True},
            "release": {"op": "hold", "jobs": jobs, "held": False},
            "retry": {"op": "retry", "jobs": jobs},
            "priority": {"op": "move", "jobs": jobs, "priority": priority},
        }
        act = request.path_params["act"]
        if act not in messages:
            return _error(404, "there is no such action")
        if act == "priority" and (type(priority) is not int or abs(priority) > MAX_PRIORITY):
            return _error(
                400, f"a priority is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        answer = await asyncio.to_thread(_tell, messages[act])
        answer.pop("id", None)
        return JSONResponse(answer)

    async def submit(self, request: Request) -> Response:
        """Submit a command line with the environment of this server."""
        body = await _body(request, MAX_SUBMIT_BYTES)
        options = {name: body[name] for name in SUBMIT_OPTIONS if body.get(name) not in (None, "")}
        if not all(isinstance(value, SUBMIT_OPTIONS[name]) for name, value in options.items()):
            raise _BadBody("a field has the wrong type")
        command = str(options.pop("command", "")).strip()
        if not command:
            raise _BadBody("the command is empty")
        handle = await asyncio.to_thread(submit, command, shell=True, **options)
        return JSONResponse({"first": handle.id})

    async def forget(self, request: Request) -> Response:
        """Forget what was learned of a job type."""
        job_type = (await _body(request)).get("type")
        if not isinstance(job_type, str):
            raise _BadBody("say which type")
        await asyncio.to_thread(ask_once, {"op": "forget", "type": job_type})
        return JSONResponse({"ok": True})

    async def unbook(self, request: Request) -> Response:
        """Remove a booking of the user."""
        booking = (await _body(request)).get("booking")
        if type(booking) is not int or booking < 0:
            raise _BadBody("say which booking")
        await asyncio.to_thread(ask_once, {"op": "unbook", "booking": booking})
        return JSONResponse({"ok": True})


def _sweep_style() -> str:
    """Return the style of the sweep page for a part of this page: its root is a shadow root."""
    style = f"{html.STYLE}{sweep_page.STYLE}\nmain {{ max-width: none; padding: 0; }}\n"
    return style.replace(":root", ":host").replace("\nbody {", "\n:host {")


def _numbers() -> str:
    began = time.monotonic()
    with StateMirror() as watch:
        while not settle(watch.picture, began):
            watch.wait(0.1)
        return metrics.text(watch.picture, time.time())


def _tell(message: Row) -> Row:
    if message["op"] == "retry":  # new jobs come of it: they must not come twice
        return queue.submit(message)
    return queue.ask(message, may_start=False)


async def _answer(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except UnknownJob as error:
        return _error(404, error.message)
    except _BadBody as error:
        return _error(400, error.message)
    except GrnError as error:
        return _error(409, f"{error.message} {error.hint}".strip())
    except ClientDisconnect:  # within its body: the answer is not read
        return _error(400, "the request has no end")


async def _body(request: Request, most: int = MAX_BODY_BYTES) -> Row:
    """Return the JSON object of a request; an empty body is an empty object."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise _BadBody("the body is too large")
    if data.count(b"[") + data.count(b"{") > MAX_BODY_OPENINGS:
        raise _BadBody("the body is too deep")
    try:
        body: Any = json.loads(data or b"{}")
    except ValueError as error:  # also what is no UTF-8
        raise _BadBody("the body is not JSON") from error
    if not isinstance(body, dict):
        raise _BadBody("the body is no JSON object")
    return body


def _job(request: Request) -> int:
    text = request.path_params["job"]
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_JOB_DIGITS):
        raise UnknownJob("this is not the number of a job.")
    return int(text)


def _stream(request: Request) -> str:
    name = request.query_params.get("name", "log")
    if name not in ("log", "err"):
        raise _BadBody("the streams are log and err")
    return name


def _match(request: Request) -> str:
    return request.query_params.get("match", "")[:MAX_MATCH]


def _number(request: Request, name: str, usual: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else usual


def _error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)
