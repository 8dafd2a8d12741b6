"""What a chat or completion would take, before it is made."""

from collections.abc import Sequence

import msgspec

from headway.adapters.gateway.job_ports import Usage
from headway.adapters.gateway.ports import Estimate
from headway.adapters.gateway.prepare import Prepared
from headway.adapters.gateway.prices import PriceSheet, today
from headway.core.units import ms_from_ns, s_from_ns


def rounded(value: float) -> float:
    """To four digits: no prediction is truer."""
    return float(f"{value:.4g}")


def text_estimate(prepared: Prepared, parts: Sequence[Estimate], sheet: PriceSheet) -> dict[str, object]:
    """All choices of the request together; `parts` in the order of its requests.

    Output is priced as long as it is likely to be (`output_tokens`); `price_usd_max` is for all that its limit allows.
    """
    first, limits = prepared.requests[0], [request.sampling.max_tokens for request in prepared.requests]
    ttft, tpot = max(part.ttft_ns for part in parts), max(part.tpot_ns for part in parts)
    used = Usage(
        first.tenant,
        first.model,
        today(),
        sum(part.device_seconds for part in parts),
        requests=1,
        prompt_tokens=sum(len(request.prompt) for request in prepared.requests),
        output_tokens=sum(part.output_tokens for part in parts),
    )
    most = msgspec.structs.replace(
        used, gpu_seconds=sum(part.device_seconds_max for part in parts), output_tokens=sum(limits)
    )
    refused = [part.verdict for part in parts if part.verdict != "admit"]
    longest = max(part.output_tokens for part in parts)
    return {
        "model": first.model,
        "requested_model": prepared.answer.asked or first.model,
        "prompt_tokens": used.prompt_tokens,
        "output_tokens": used.output_tokens,
        "max_output_tokens": most.output_tokens,
        "gpu_seconds": rounded(used.gpu_seconds),
        "price_usd": rounded(sheet.usd(used)),
        "price_usd_max": rounded(sheet.usd(most)),
        "eta_s": rounded(s_from_ns(ttft + tpot * max(0, longest - 1))),
        "ttft_ms": rounded(ms_from_ns(ttft)),
        "tpot_ms": rounded(ms_from_ns(tpot)),
        "memory_bytes": sum(part.kv_bytes for part in parts),
        "verdict": refused[0] if refused else "admit",
    }
