"""Does a chat completion request sample from the run's distribution? Pure functions over its JSON.

The loss models one distribution; tokens drawn under another would train on wrong probabilities without any error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.schema.sampling import Sampling

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "seed": (),  # one seed for all responses of a group would make them equal
    "use_beam_search": (False,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "ignore_eos": (False,),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "watermarking": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "tool_choice": ("auto", "none"),
    "stream": (False,),  # a stream is not recorded
}
"""Everything else in a request that changes what is sampled -> the values, besides null, that do not."""


def sampling_differences(request: Mapping[str, Any], sampling: Sampling) -> list[str]:
    """Everything in a request that would sample from another distribution than the run's, both values named.

    The words "context length" and "max_tokens" must not occur: NeMo Gym takes a refusal that holds them for a prompt
    that is too long, and scores an empty response.
    """
    run_values = {"temperature": (sampling.temperature,), "top_p": (sampling.top_p,), **NEUTRAL}
    found = [
        f"{key} is {request[key]!r}, the run's is {allowed[0] if allowed else None!r}"
        for key, allowed in run_values.items()
        if request.get(key) is not None and request[key] not in allowed
    ]
    top_k = request.get("top_k")
    if top_k is not None and (not isinstance(top_k, int) or _kept(top_k) != _kept(sampling.top_k)):
        found.append(f"top_k is {top_k!r}, the run's is {sampling.top_k!r}")
    limit = _token_limit(request)
    if limit is not None and limit > sampling.max_new_tokens:
        found.append(f"{limit} new tokens are allowed, training.max_new_tokens is {sampling.max_new_tokens}")
    return found


def with_sampling(request: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
    """The request with everything it leaves out filled in from the run.

    vLLM masks tokens for tools that are ``strict`` and for ``parallel_tool_calls: false``, which tool-calling rows
    commonly say: both are lifted, so that the policy learns to keep to its tools by itself.
    """
    kept = {key: value for key, value in request.items() if value is not None and key != "max_tokens"}
    kept.pop("parallel_tool_calls", None)
    if tools := kept.get("tools"):
        kept["tools"] = _unconstrained(tools)
    limit = _token_limit(request)
    return kept | {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": _kept(sampling.top_k),
        "max_completion_tokens": sampling.max_new_tokens if limit is None else limit,
        "return_token_ids": True,
    }


def _token_limit(request: Mapping[str, Any]) -> int | None:
    """What the request allows; vLLM refuses values that are no integers by itself."""
    values = (request.get(key) for key in ("max_completion_tokens", "max_tokens"))
    return next((value for value in values if isinstance(value, int)), None)


def _kept(top_k: int | None) -> int:
    """How many of the likeliest tokens are kept; 0 keeps all, as vLLM's 0 and -1 do."""
    return max(top_k or 0, 0)


def _unconstrained(tools: Sequence[Any]) -> list[Any]:
    def without_strict(tool: Any) -> Any:
        if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
            return tool
        return {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}

    return [without_strict(tool) for tool in tools]
