"""`headway bench`: a load on any OpenAI-compatible server, and what its clients saw."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from headway.bench.load import LoadParams, load
from headway.bench.summary import Summary, Targets, summarise, table
from headway.cli.outputs import check_writable, writing

app = typer.Typer(add_completion=False)


class Run(msgspec.Struct, frozen=True):
    """One stored run: what was asked and what came of it. The API key is left out."""

    load: LoadParams
    targets: Targets
    summary: Summary


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Server, for example http://127.0.0.1:8000")],
    model: Annotated[str, typer.Option(help="Model name as the server lists it.")],
    requests: Annotated[int, typer.Option(help="Requests to send.")] = 50,
    rate: Annotated[float | None, typer.Option(help="Open loop: Poisson arrivals per second.")] = None,
    concurrency: Annotated[int, typer.Option(help="Closed loop: requests under way at any time.")] = 4,
    endpoint: Annotated[Literal["chat", "completions"], typer.Option(help="Route to use.")] = "completions",
    prompt_words: Annotated[int, typer.Option(help="Words per prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = 64,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for exactly max_tokens (vLLM's extension).")] = False,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = None,
    ttft_ms: Annotated[float | None, typer.Option(help="Target: time to first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Target: time per output token.")] = None,
    e2e_ms: Annotated[float | None, typer.Option(help="Target: whole request.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Store the run as JSON.")] = None,
) -> None:
    """Send a load and print TTFT, TPOT, ITL, e2e percentiles, throughput and goodput."""
    check_writable("--out", out)
    params = LoadParams(
        url=url,
        model=model,
        count=requests,
        rate_per_s=rate,
        concurrency=concurrency,
        endpoint=endpoint,
        prompt_words=prompt_words,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        api_key=api_key,
        seed=seed,
    )
    targets = Targets(ttft_ms, tpot_ms, e2e_ms)
    summary = summarise(load(params), targets)
    print(table(summary))
    if out is not None:
        stored = Run(msgspec.structs.replace(params, api_key=None), targets, summary)
        with writing("--out", out):
            out.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
    if not summary.completed:
        raise typer.Exit(1)
