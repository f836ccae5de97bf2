"""Dataset row --> the request body that a Gym agent's ``/run`` takes. Pure."""

from collections.abc import Mapping
from typing import Any

from gym_bridge.types import RolloutRequest
from launcher.schema.sampling import Sampling


def run_request(request: RolloutRequest, sampling: Sampling) -> dict[str, Any]:
    """The row with the run's sampling values in place of its own: what is sampled must be what the loss assumes.

    ``top_k`` has no place in a Responses request; the gateway in front of vLLM adds it.
    """
    params = dict(request.row["responses_create_params"])
    params["temperature"] = sampling.temperature
    params["top_p"] = sampling.top_p
    params["max_output_tokens"] = sampling.max_new_tokens
    return {
        **request.row,
        "responses_create_params": params,
        "_ng_task_index": request.row_index,
        "_ng_rollout_index": request.rollout_id,
    }


def agent_name(row: Mapping[str, Any]) -> str:
    """The agent instance that the row asks for."""
    name: str = row["agent_ref"]["name"]
    return name


def prompt_text(row: Mapping[str, Any]) -> str:
    """What a person would read as the row's prompt: the text of its last user message."""
    asked = row["responses_create_params"]["input"]
    if isinstance(asked, str):
        return asked
    for item in reversed(asked):
        if item.get("role") == "user":
            return content_text(item["content"])
    return ""


def content_text(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))
