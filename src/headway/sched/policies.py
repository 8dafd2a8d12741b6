"""Builds the policies that nodes are configured with; what a machine provides is named here, once."""

from typing import Final

from headway.sched.admission.protocol import AdmissionPolicy
from headway.sched.executor.protocol import PacePolicy
from headway.sched.registry import PolicyChoice, select
from headway.sched.router.protocol import ReplicaView, RoutingPolicy

ROUTERS: Final = "headway.sched.router.policies"
ADMISSIONS: Final = "headway.sched.admission.policies"
PACES: Final = "headway.sched.executor.policies"


def routing_policy(choice: PolicyChoice) -> RoutingPolicy:
    """Build a routing policy. Raises ConfigError."""
    views = {name: True for name, value in vars(ReplicaView).items() if isinstance(value, property)}
    cls, params = select(ROUTERS, "router", choice, {**views, "block_hashes": True})
    policy: RoutingPolicy = cls(params)
    return policy


def admission_policy(choice: PolicyChoice) -> AdmissionPolicy:
    """Build an admission policy. Raises ConfigError."""
    cls, params = select(ADMISSIONS, "admission", choice, dict.fromkeys(("queued", "has_room", "outlook"), True))
    policy: AdmissionPolicy = cls(params)
    return policy


def pace_policy(choice: PolicyChoice) -> PacePolicy:
    """Build a pacing policy. Raises ConfigError."""
    cls, params = select(PACES, "pace", choice, dict.fromkeys(("step_ns", "plan_ns"), True))
    policy: PacePolicy = cls(params)
    return policy
