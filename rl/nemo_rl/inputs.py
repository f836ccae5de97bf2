"""What a job refers to, as files that NeMo RL is pointed at.

model, chat_template, dataset, environment --(references)--> RunFiles + root of the environment package
"""

from collections.abc import Callable
from pathlib import Path

from launcher.chat_template import chat_template_text
from launcher.dataset import find_dataset
from launcher.environment.package import load_package
from launcher.references import resolve_reference
from launcher.schema.job import JobConfig
from rl.model_files import cache_folder, model_folder
from rl.nemo_rl.config import RunFiles


def run_files(
    job: JobConfig, *, output: Path, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[RunFiles, Path]:
    """Find everything a run reads.

    Args:
        job: the job.
        output: folder that gets checkpoints and logs.
        on_progress: told in a few words what takes long.

    Returns:
        The files, and the root of the environment package.

    Raises:
        LauncherError: a reference leads nowhere.
    """
    package = load_package(resolve_reference("environment", job.environment.name).local_path())
    dataset = find_dataset(resolve_reference("dataset", job.dataset).local_path())
    files = RunFiles(
        model=_model(job.model.name, on_progress),
        chat_template=chat_template_text(job.model.chat_template),
        training_rows=dataset.training.absolute(),
        validation_rows=dataset.validation.absolute() if dataset.validation else None,
        gym_configs=tuple(package.root / path for path in package.manifest.config_paths),
        output=output.absolute(),
    )
    return files, package.root


def _model(name: str, on_progress: Callable[[str], None]) -> str:
    """Hub models keep their name, since every node fetches them by itself; others are a folder all nodes must see."""
    reference = resolve_reference("model", name)
    match reference.kind:
        case "hub":
            return reference.location
        case "wheel":
            return str(model_folder(reference.text, cache=cache_folder(), on_progress=on_progress))
        case _:
            return str(model_folder(str(reference.local_path()), cache=cache_folder(), on_progress=on_progress))
