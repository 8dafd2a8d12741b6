"""How close simulated times come to published measurements that no fit has seen.

    python benchmarks/fidelity.py vllm DIR...                 per-request logs of vLLM: fit one half, judge the other
    python benchmarks/fidelity.py silicon FILE.csv            closed loops: judge the corrections that are shipped
    python benchmarks/fidelity.py silicon FILE.csv --split    the same, each half of the configurations judged by a fit
                                                              to the other half

`DIR` holds `requests.jsonl` and `meta.json` as LLMServingSim's bench writes them.
"""

import argparse
import datetime
import hashlib
import time
from pathlib import Path

import fidelity_silicon

from headway.cost.fitted import CostFile, Stamp, format_cost_file
from headway.sim.calibration import Origin
from headway.sim.engine_replay import vllm_scheduler
from headway.sim.request_fit import METRICS, Engine, Search, fit_requests
from headway.workload.request_logs import read_log_meta, read_request_log


def vllm(options: argparse.Namespace) -> None:
    print("| log | metric | mean | p50 | p99 | mean absolute |")
    print("|---|---|---|---|---|---|")
    for folder in options.folders:
        began_s = time.process_time()
        file = _fit(folder, options.device)
        took_s = time.process_time() - began_s
        for metric in METRICS:
            error = file.held_out[metric]
            shares = " | ".join(f"{share:+.1%}" for share in (error.mean, error.p50 or 0.0, error.p99 or 0.0))
            print(f"| {folder.name} | {metric} | {shares} | {error.mae:.1%} |")
        at = file.coefficients
        print(
            f"\n{folder.name}: {at.base_ns / 1e6:.2f} ms + {at.token_ns / 1e3:.1f} us/prompt token + "
            f"{at.row_ns / 1e3:.1f} us/row + {at.kv_ns:.1f} ns/context token; {took_s:.0f} s of CPU; "
            f"{'; '.join(file.notes)}\n"
        )
        if options.out is not None:
            name = f"vllm-{file.stamp.engine_version}-{folder.name.removeprefix('vllm_')}.json"
            (options.out / name).write_bytes(format_cost_file(file))


def _fit(folder: Path, device: str) -> CostFile:
    content = (folder / "requests.jsonl").read_bytes()
    meta = read_log_meta((folder / "meta.json").read_bytes(), str(folder / "meta.json"))
    arguments = meta.engine_kwargs
    stamp = Stamp(
        engine="vllm",
        engine_version=meta.vllm_version,
        device=device,
        model=arguments.model,
        layout={"tp": arguments.tensor_parallel_size},
        dtype=arguments.dtype,
    )
    source = f"requests {folder.name} {hashlib.sha256(content).hexdigest()[:12]}"
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    engine = Engine(vllm_scheduler(arguments), arguments.block_size)
    return fit_requests(read_request_log(content, folder.name), engine, Origin(stamp, source, date), Search())


def silicon(options: argparse.Namespace) -> None:
    if options.rules:
        print(fidelity_silicon.rules())
    elif options.write is not None:
        fidelity_silicon.write(options.table, options.write)
    elif options.leave_out is not None:
        fidelity_silicon.leave_out(options.table, options.leave_out)
    elif options.split:
        fidelity_silicon.split(options.table)
    else:
        from headway.cost.measured_silicon import CORRECTIONS

        fidelity_silicon.judge(options.table, CORRECTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    logs = commands.add_parser("vllm", help="per-request logs of vLLM")
    logs.add_argument("folders", type=Path, nargs="+")
    logs.add_argument("--device", default="RTX-PRO-6000", help="stamp of the cost files")
    logs.add_argument("--out", type=Path, help="folder for the cost files")
    logs.set_defaults(run=vllm)
    loops = commands.add_parser("silicon", help="closed loops of aiconfigurator-core's silicon sample")
    loops.add_argument("table", type=Path)
    loops.add_argument("--split", action="store_true", help="judge each half by a fit to the other")
    loops.add_argument("--leave-out", choices=("model", "device"), help="judge each by a fit to all others")
    loops.add_argument("--write", type=Path, metavar="MODULE", help="fit all rows and write the module that is shipped")
    loops.add_argument("--rules", action="store_true", help="say which rows are used")
    loops.set_defaults(run=silicon)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
