"""Rows -> requests."""

from gym_bridge.rows import agent_name, prompt_text, run_request
from gym_bridge.types import RolloutRequest
from launcher.schema.sampling import Sampling

ROW = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "hi"}], "temperature": 0.1, "metadata": {"a": "b"},
    },
    "agent_ref": {"type": "responses_api_agents", "name": "agent"},
    "answer": 7,
}  # fmt: skip


def test_sampling_is_the_run_s_and_everything_else_the_row_s() -> None:
    request = RolloutRequest(group_id=3, rollout_id=1, row_index=8, row=ROW)
    sampling = Sampling(temperature=0.7, top_p=1.0, top_k=20, max_new_tokens=64)
    assert run_request(request, sampling) == {
        "responses_create_params": {
            "input": [{"role": "user", "content": "hi"}], "metadata": {"a": "b"},
            "temperature": 0.7, "top_p": 1.0, "max_output_tokens": 64,
        },
        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
        "answer": 7, "_ng_task_index": 8, "_ng_rollout_index": 1,
    }  # fmt: skip
    assert ROW["responses_create_params"]["temperature"] == 0.1  # type: ignore[index]


def test_the_agent_and_the_prompt_of_a_row() -> None:
    assert agent_name(ROW) == "agent"
    assert prompt_text(ROW) == "hi"
    assert prompt_text({"responses_create_params": {"input": "plain"}}) == "plain"
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]}]
    assert prompt_text({"responses_create_params": {"input": [*parts, {"role": "assistant", "content": "b"}]}}) == "a"
    assert prompt_text({"responses_create_params": {"input": [{"role": "system", "content": "c"}]}}) == ""
