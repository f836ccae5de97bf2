"""``grpo explain``, ``grpo schema`` and completion."""

import contextlib
import io
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import COMMANDS, main
from launcher.commands.completion import _argument, _options, _parser
from launcher.commands.explain import explain
from launcher.completion import candidates
from launcher.json_schemas import SCHEMAS
from launcher.rules import RULES
from launcher.schema.plan import RunPlan
from launcher.schema.problems import LauncherError
from launcher.setting_docs import settings
from launcher.validation import key_paths

Project = Callable[[dict[str, str]], Path]


def test_every_setting_has_a_meaning_and_a_type() -> None:
    for key in key_paths():
        facts = explain(key, [])
        assert facts["meaning"].endswith((".", ")")), key
        assert facts.get("settings") or (facts["type"] and "default" in facts), key


def test_every_rule_has_a_long_form() -> None:
    for rule in RULES:
        facts = explain(rule.code.lower(), [])
        assert len(facts["meaning"]) > 60, rule.code
        assert facts["settings"]


def test_every_derived_value_is_explained_with_its_formula() -> None:
    assert explain("rollouts_per_step", ["recipe=demo"])["origin"] == "derived: prompts × generations = 8 × 8"
    for name in RunPlan.__dataclass_fields__:
        assert explain(name, [])["meaning"], name


def test_a_setting_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "training.train_mb_tokens", "recipe=demo", "training.micro_batch_size=16"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "training.train_mb_tokens",
        "  meaning   Token budget of a micro-batch; unset is max_seq_length × micro_batch_size.",
        "  type      whole number or null",
        "  bound     > 0",
        "  default   null",
        "  value     4096",
        "  origin    derived: max_seq_length × micro_batch_size = 256 × 16",
        "  rules     R06: a micro-batch holds a sequence",
    ]


def test_origins_in_explanations() -> None:
    facts = explain("training.policy_backend", ["recipe=demo"])
    assert (facts["value"], facts["origin"]) == ("dtensor", "group, conf/backend/dtensor.yaml:2")
    assert facts["type"] == "choice (automodel, dtensor)"
    assert explain("rank", ["recipe=demo", "lora=r8"])["origin"] == "group, conf/lora/r8.yaml:5"
    assert (
        "not one of" in explain("training.optimizer_type", ["recipe=demo", "training.optimizer_type=x"])["problems"][0]
    )


def test_an_unset_value_is_shown_as_null(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "training.top_k", "recipe=demo"]) == 0
    assert "  value     null" in capsys.readouterr().out


@pytest.mark.parametrize("override", ["backend=dtenser", "training.seed=${oc.decode:${oc.env:SEED}}", "nonsense=("])
def test_overrides_that_cannot_be_used_are_not_explained_away(override: str) -> None:
    with pytest.raises(LauncherError):
        explain("training.seed", ["recipe=demo", override])


def test_a_metric_is_explained() -> None:
    assert explain("train_reward", [])["meaning"]


@pytest.mark.parametrize(
    ("name", "fix"),
    [("training.temprature", "did you mean training.temperature?"), ("R99", "did you mean "), ("xyzzy", "see `grpo")],
)
def test_an_unknown_name(name: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 1
    assert fix in capsys.readouterr().err


def test_a_name_that_several_keys_end_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "enabled"]) == 1
    assert "logger.wandb.enabled, sandbox.enabled" in capsys.readouterr().err


def test_without_a_name_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {key for key, setting in settings().items() if not setting.is_section} <= listed
    assert {rule.code for rule in RULES} <= listed


@pytest.mark.parametrize("what", list(SCHEMAS))
def test_schemas_are_json(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", what]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_schema_of_a_job_states_required_keys_types_and_bounds() -> None:
    schema = SCHEMAS["job"]()
    training = schema["$defs"]["TrainingConfig"]
    assert schema["required"] == ["model", "dataset", "environment", "training"]
    assert training["required"] == ["type"]
    assert training["properties"]["type"]["const"] == "grpo"
    assert training["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert training["additionalProperties"] is False


def words_after(line: str) -> list[str]:
    words = line.split(" ")
    parser = _parser(words)
    return candidates(words, commands=COMMANDS, options=_options(parser), argument=_argument(parser, words))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tr", ["train"]),
        ("train recipe=de", ["recipe=demo"]),
        ("train backend=", ["backend=automodel", "backend=dtensor"]),
        ("check training.temp", ["training.temperature="]),
        ("check training.paral", ["training.parallelism."]),
        ("train training.policy_backend=dtensor,a", ["training.policy_backend=dtensor,automodel"]),
        ("train lora=r16,r6", ["lora=r16,r64"]),
        ("train hydra/", ["hydra/launcher=", "hydra/sweeper="]),
        ("train hydra/launcher=j", ["hydra/launcher=joblib"]),
        ("train hydra/sweeper=", ["hydra/sweeper=basic", "hydra/sweeper=optuna"]),
        ("train --cfg ", ["all", "hydra", "job"]),
        ("train -m --job ", []),
        ("explain training.temp", ["training.temperature"]),
        ("explain training.paral", ["training.parallelism."]),
        ("explain R0", [f"R0{number}" for number in range(1, 10)]),
        ("explain train_rew", ["train_reward"]),
        ("explain recip", ["recipe="]),
        ("explain R08 recipe=dem", ["recipe=demo"]),
        ("explain R08 training.temp", ["training.temperature="]),
        ("env val", ["validate"]),
        ("env validate --off", ["--offline"]),
        ("env new --format w", ["wheels-v1"]),
        ("train training.shuffle=", ["training.shuffle=false", "training.shuffle=true"]),
        ("train ++training.lora.r", ["++training.lora.rank="]),
        ("train ~training.lora", ["~training.lora"]),
        ("check --conf", ["--config-only"]),
        ("schema j", ["job"]),
        ("nonsense x", []),
    ],
)
def test_completion(line: str, expected: list[str]) -> None:
    assert words_after(line) == expected


def test_completion_knows_the_recipes_of_the_working_directory(project: Project) -> None:
    project({"recipes/mine.yaml": "", "conf/model/own.yaml": ""})
    assert words_after("train recipe=m") == ["recipe=mine", "recipe=moe_nemo_rl"]
    assert words_after("train model=o") == ["model=own"]


WORDS = {
    "grpo train backend=": "backend=automodel backend=dtensor",
    "grpo train recipe=de": "recipe=demo",
    "grpo train training.": "training.seed=",
    "grpo train --job jo": "",
}
"""What a stand-in for ``grpo completion words`` answers, by command line."""
IN_BASH = """
compopt() { printf '(no space) '; }
complete() { :; }
try() { COMP_LINE="$1" COMP_POINT="${#1}" _grpo; echo "${COMPREPLY[*]}"; }
"""
IN_ZSH = """
compdef() { :; }
compadd() { printf '%s ' "$@"; }
compset() { printf 'compset %s ' "$@"; }
_files() { printf files; }
try() { LBUFFER="$1" _grpo; echo }
"""


def completed(shell: str, stand_ins: str, folder: Path) -> list[str]:
    """What a shell's completion function makes of each of ``WORDS``."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    answers = [f"{shlex.quote(line)}) printf '%s\\n' {words};;" for line, words in WORDS.items() if words]
    completion = io.StringIO()
    with contextlib.redirect_stdout(completion):
        main(["completion", shell])
    file = folder / f"completion.{shell}"
    file.write_text("\n".join([stand_ins, 'grpo() { case "$4" in', *answers, "esac; }", completion.getvalue(),
                               *(f"try {shlex.quote(line)}" for line in WORDS)]))  # fmt: skip
    answer = subprocess.run([program, file], capture_output=True, text=True, timeout=20, check=True)
    assert answer.stderr == ""
    return [line.rstrip() for line in answer.stdout.splitlines()]


def test_the_bash_script_completes_behind_the_equals_sign(tmp_path: Path) -> None:
    assert completed("bash", IN_BASH, tmp_path) == ["automodel dtensor", "demo", "(no space) training.seed=", ""]


def test_the_zsh_script_leaves_no_space_where_more_follows(tmp_path: Path) -> None:
    assert completed("zsh", IN_ZSH, tmp_path) == [
        "-Q -- backend=automodel backend=dtensor",
        "-Q -- recipe=demo",
        "-Q -S  -- training.seed=",
        "compset -P compset *= files",
    ]
