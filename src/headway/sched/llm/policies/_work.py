"""What is left of a request, as orders by work predict it."""

from headway.core.units import Ns
from headway.sched.llm.protocols import OrderContext
from headway.sched.llm.sequence import Seq


def work_left_ns(context: OrderContext, seq: Seq, unknown_tokens: int) -> Ns:
    """Predicted time of `seq` alone until its last token; `unknown_tokens`: outputs assumed without a prediction.

    Not for one that decodes: its counts are those of the step that it joined in.
    """
    belief = context.belief
    assert belief is not None  # the policies' `needs` say so
    tokens = seq.request.output_tokens_predicted
    likely = min(unknown_tokens if tokens is None else tokens, seq.request.sampling.max_tokens)
    left = max(likely - seq.outputs, 1)
    return belief.prefill_ns(seq.computed, seq.target - seq.computed) + left * belief.step_ns(1, seq.target)
