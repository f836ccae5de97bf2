"""Prompt rows: one JSON object a line, in the shape NeMo Gym takes them.

line of training.jsonl --(json)--> dict --(ROW, VERIFIERS_ROW)--> faults, none when Gym's servers would take the row.
The types here are dictionaries, not models: a row travels on to the environment as it stands in the file, extra keys
included, and checking it this way takes a few microseconds.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag, TypeAdapter, with_config

_EXTRAS_KEPT = ConfigDict(extra="allow", strict=True)
_EXTRAS_REFUSED = ConfigDict(extra="forbid", strict=True)

NonEmpty = Annotated[str, StringConstraints(min_length=1)]

# A tag in angle brackets names a branch of a union; ``launcher.dataset`` leaves such tags out of key paths.
_OTHER_PARTS = ("input_image", "input_file", "input_audio", "refusal")
_OTHER_ITEMS = ("function_call", "function_call_output", "reasoning")


@with_config(_EXTRAS_KEPT)
class TextPart(TypedDict):
    """A piece of text inside a message."""

    type: Literal["input_text", "output_text"]
    text: str


@with_config(_EXTRAS_KEPT)
class OtherPart(TypedDict):
    """A piece of a message that is not text."""

    type: Literal["input_image", "input_file", "input_audio", "refusal"]


def _part_tag(part: object) -> str:
    return "<other>" if isinstance(part, dict) and part.get("type") in _OTHER_PARTS else "<text>"


def _list_tag(value: object) -> str:
    return "<list>" if isinstance(value, list) else "<string>"


ContentPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[OtherPart, Tag("<other>")], Discriminator(_part_tag)
]
Content = Annotated[
    Annotated[NonEmpty, Tag("<string>")] | Annotated[list[ContentPart], Field(min_length=1), Tag("<list>")],
    Discriminator(_list_tag),
]


@with_config(_EXTRAS_KEPT)
class Message(TypedDict):
    """What somebody says."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    type: NotRequired[Literal["message"]]


@with_config(_EXTRAS_KEPT)
class FunctionCall(TypedDict):
    """A tool call of an earlier turn; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    name: NonEmpty
    arguments: str
    call_id: NonEmpty


@with_config(_EXTRAS_KEPT)
class FunctionCallOutput(TypedDict):
    """What a tool answered in an earlier turn."""

    type: Literal["function_call_output"]
    call_id: NonEmpty
    output: str


@with_config(_EXTRAS_KEPT)
class Reasoning(TypedDict):
    """Reasoning of an earlier turn."""

    type: Literal["reasoning"]
    id: str
    summary: list[dict[str, Any]]


def _item_tag(item: object) -> str:
    kind = item.get("type") if isinstance(item, dict) else None
    return f"<{kind}>" if kind in _OTHER_ITEMS else "<message>"


InputItem = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[FunctionCallOutput, Tag("<function_call_output>")]
    | Annotated[Reasoning, Tag("<reasoning>")],
    Discriminator(_item_tag),
]
Input = Annotated[
    Annotated[NonEmpty, Tag("<string>")] | Annotated[list[InputItem], Field(min_length=1), Tag("<list>")],
    Discriminator(_list_tag),
]


@with_config(_EXTRAS_KEPT)
class FunctionTool(TypedDict):
    """A tool the model may call. Gym's model server hands vLLM functions and nothing else."""

    type: Literal["function"]
    name: NonEmpty
    parameters: Annotated[dict[str, Any] | None, Field(description="JSON Schema of the arguments.")]
    strict: Annotated[bool | None, Field(description="Whether arguments must follow the schema exactly.")]
    description: NotRequired[str | None]


@with_config(_EXTRAS_REFUSED)
class ResponsesCreateParams(TypedDict):
    """The model request of a row. Gym refuses keys that are not listed here."""

    input: Annotated[Input, Field(description="The prompt: a string, or a list of messages and earlier tool calls.")]
    tools: NotRequired[Annotated[list[FunctionTool], Field(description="Functions the model may call.")]]
    instructions: NotRequired[str | None]
    max_output_tokens: NotRequired[int | None]
    max_tool_calls: NotRequired[int | None]
    temperature: NotRequired[float | None]
    top_p: NotRequired[float | None]
    top_logprobs: NotRequired[int | None]
    tool_choice: NotRequired[str | dict[str, Any]]
    parallel_tool_calls: NotRequired[bool]
    metadata: NotRequired[dict[str, str] | None]
    text: NotRequired[dict[str, Any] | None]
    reasoning: NotRequired[dict[str, Any] | None]
    prompt: NotRequired[dict[str, Any] | None]
    include: NotRequired[list[str] | None]
    model: NotRequired[str | None]
    user: NotRequired[str | None]
    previous_response_id: NotRequired[str | None]
    service_tier: NotRequired[Literal["auto", "default", "flex", "scale", "priority"] | None]
    truncation: NotRequired[Literal["auto", "disabled"] | None]
    background: NotRequired[bool | None]
    store: NotRequired[bool | None]
    stream: NotRequired[Literal[False] | None]


@with_config(_EXTRAS_KEPT)
class AgentRef(TypedDict):
    """Which agent of the environment runs the row; ``name`` is a top-level key of the environment's YAML."""

    type: Literal["responses_api_agents"]
    name: NonEmpty


@with_config(_EXTRAS_KEPT)
class PromptRow(TypedDict):
    """One line of ``training.jsonl`` or ``validation.jsonl``. Extra keys are kept and handed to the environment.

    Example:
        {"responses_create_params": {"input": [{"role": "user", "content": "Name two planets."}]},
         "agent_ref": {"type": "responses_api_agents", "name": "planets_agent"}, "expected": 2}
    """

    responses_create_params: ResponsesCreateParams
    agent_ref: AgentRef


@with_config(_EXTRAS_KEPT)
class VerifiersFields(TypedDict):
    """What a row of a ``verifiers`` environment has besides, with the types that ``verifiers_agent`` insists on."""

    vf_env_id: Annotated[NonEmpty, Field(description="For verifiers.load_environment(): the manifest's vf_env_id.")]
    task_idx: Annotated[int, Field(description="Index of the row.")]
    answer: NotRequired[str]
    task: NotRequired[str]
    example_id: NotRequired[int | str]
    info: NotRequired[dict[str, Any]]


ROW: TypeAdapter[PromptRow] = TypeAdapter(PromptRow)
VERIFIERS_ROW: TypeAdapter[VerifiersFields] = TypeAdapter(VerifiersFields)
