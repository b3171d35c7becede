"""All that a client may say, as one literal table: there is no other way to a function of ours."""

from __future__ import annotations

from grn.daemon.connection import Verbs
from grn.negotiator import handlers, query_handlers
from grn.protocol import negotiator_requests

VERBS: Verbs = {
    negotiator_requests.LeaseRequest: handlers.lease,
    negotiator_requests.BindRequest: handlers.hold,
    negotiator_requests.DoneRequest: handlers.done,
    negotiator_requests.WatchRequest: handlers.watch,
    negotiator_requests.WithdrawRequest: handlers.cancel,
    negotiator_requests.StatusRequest: query_handlers.status,
    negotiator_requests.FollowRequest: query_handlers.follow,
    negotiator_requests.SamplesRequest: query_handlers.samples,
    negotiator_requests.WhyRequest: query_handlers.why,
    negotiator_requests.ReasonsRequest: query_handlers.reasons,
    negotiator_requests.ProfilesRequest: query_handlers.profiles,
    negotiator_requests.AuditRequest: query_handlers.audit,
    negotiator_requests.PingRequest: query_handlers.ping,
    negotiator_requests.ForgetRequest: query_handlers.forget,
    negotiator_requests.StopRequest: query_handlers.stop,
}
