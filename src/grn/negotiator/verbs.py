"""All that a client may say, as one literal table: there is no other way to a function of ours."""

from __future__ import annotations

from grn.negotiator import asking, looking, messages
from grn.talk import Verbs

VERBS: Verbs = {
    messages.LeaseAsked: asking.lease,
    messages.HoldAsked: asking.hold,
    messages.DoneSaid: asking.done,
    messages.WatchAsked: asking.watch,
    messages.CancelAsked: asking.cancel,
    messages.StatusAsked: looking.status,
    messages.FollowAsked: looking.follow,
    messages.SamplesAsked: looking.samples,
    messages.WhyAsked: looking.why,
    messages.ReasonsAsked: looking.reasons,
    messages.ProfilesAsked: looking.profiles,
    messages.AuditAsked: looking.audit,
    messages.PingSaid: looking.ping,
    messages.ForgetAsked: looking.forget,
    messages.StopAsked: looking.stop,
}
