"""``grpo explain``: a setting, a derived value, a rule or a metric: its value, where it came from, what it means."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.commands.arguments import add_job_arguments
from launcher.compile import DERIVED_SETTINGS
from launcher.origins import touches
from launcher.rules import RULES, Rule, rule
from launcher.schema.problems import LauncherError, Problem
from launcher.setting_docs import Setting, settings
from launcher.suggest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``grpo explain``."""
    add_job_arguments(parser)
    parser.usage = "grpo explain [KEY|RULE|METRIC] [recipe=NAME] [group=choice] [key=value ...] [--job FILE] [--json]"
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Explain one thing; without a name, list what can be explained."""
    names = [text for text in options.overrides if "=" not in text and not text.startswith("~")]
    overrides = [text for text in options.overrides if text not in names]
    if not names:
        _print_topics()
        return 0
    for name in names:
        facts = explain(name, overrides, job_json=options.job)
        print(json.dumps(facts, default=str) if options.json else _as_text(facts))
    return 0


def explain(name: str, overrides: list[str], *, job_json: Path | None = None) -> dict[str, Any]:
    """Everything known about a name.

    Args:
        name: a dotted key, a field of the plan, a rule's code or a metric.
        overrides: what to compose to find a value; none shows defaults.
        job_json: as for ``resolve``.

    Raises:
        LauncherError: when nothing has that name.
    """
    known = settings()
    found_rule = rule(name)
    if found_rule is not None:
        return _rule_facts(found_rule)
    if name in known:
        return _setting_facts(known[name], overrides, job_json)
    by_leaf = [key for key in known if key.rpartition(".")[2] == name]
    if len(by_leaf) == 1:
        return _setting_facts(known[by_leaf[0]], overrides, job_json)
    derived = _derived_facts(name, overrides, job_json)
    metric = None if derived else _metric_facts(name)
    if derived or metric:
        return derived or metric or {}
    names = [*known, *(rule.code for rule in RULES)]
    fix = f"give one of {', '.join(by_leaf)}" if by_leaf else did_you_mean(name, names, otherwise="see `grpo explain`")
    message = "is the last part of several keys" if by_leaf else "is no setting, derived value, rule or metric"
    raise LauncherError([Problem(code="unknown-name", path=name, message=message, fix=fix)])


def _setting_facts(setting: Setting, overrides: list[str], job_json: Path | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": setting.key, "meaning": setting.meaning}
    if setting.is_section:
        facts["settings"] = [key for key in settings() if key.startswith(setting.key + ".")]
    else:
        facts["type"] = setting.type + (f" ({', '.join(setting.choices)})" if setting.choices else "")
        if setting.bound:
            facts["bound"] = setting.bound
        facts["default"] = "required" if setting.required else setting.default
    if overrides or job_json is not None:
        facts.update(_value_facts(setting, overrides, job_json))
    facts["rules"] = [f"{r.code}: {r.title}" for r in RULES if any(touches(key, setting.key) for key in r.reads)]
    return facts


def _value_facts(setting: Setting, overrides: list[str], job_json: Path | None) -> dict[str, Any]:
    from launcher.checking import check_job  # the answer for a default needs no Hydra
    from launcher.origins import value_at

    checked = check_job(overrides, job_json=job_json)
    if unusable := [p for p in checked.problems if p.code in ("bad-override", "unknown-choice")]:
        raise LauncherError(unusable)
    path = tuple(setting.key.split("."))
    origin = checked.resolved.origin(setting.key)
    facts = {"origin": str(origin)}
    if not setting.is_section:
        facts = {"value": value_at(checked.resolved.to_tree(), path), **facts}
    field = DERIVED_SETTINGS.get(setting.key)
    if field and checked.plan is not None and origin.kind == "default":
        facts = {"value": asdict(checked.plan)[field], "origin": f"derived: {checked.plan.formulas[field]}"}
    wrong = [p.message for p in checked.problems if touches(p.path, setting.key) and p.severity == "error"]
    return {**facts, "problems": wrong} if wrong else facts


def _derived_facts(name: str, overrides: list[str], job_json: Path | None) -> dict[str, Any] | None:
    from launcher.schema.plan import RunPlan

    if name not in RunPlan.__dataclass_fields__:
        return None
    facts: dict[str, Any] = {
        "key": name,
        "meaning": "Derived from settings and rows; `grpo check` shows all such values.",
    }
    if not overrides and job_json is None:
        return {**facts, "value": "give a recipe to see it, as in `grpo explain " + name + " recipe=demo`"}
    from launcher.checking import check_job

    plan = check_job(overrides, job_json=job_json).require_valid()
    return {**facts, "value": asdict(plan)[name], "origin": f"derived: {plan.formulas.get(name, 'see its parts')}"}


def _metric_facts(name: str) -> dict[str, Any] | None:
    from rl.metric_docs import metric_doc  # a table without imports of its own; only this command reads it here

    doc = metric_doc(name)
    return None if doc is None else {"key": name, **asdict(doc)}


def _rule_facts(found: Rule) -> dict[str, Any]:
    text = " ".join((found.check.__doc__ or "").split())
    return {"key": found.code, "title": found.title, "meaning": text, "settings": list(found.reads)}


def _as_text(facts: Mapping[str, Any]) -> str:
    lines = [str(facts["key"])]
    for name, value in facts.items():
        if name == "key" or (value in ([], None) and name not in ("default", "value")):
            continue
        if isinstance(value, list):
            lines.append(f"  {name:8}  {value[0]}")
            lines.extend(f"  {'':8}  {item}" for item in value[1:])
        else:
            shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            lines.append(f"  {name:8}  {shown}")
    return "\n".join(lines)


def _print_topics() -> None:
    for setting in settings().values():
        if not setting.is_section:
            print(f"{setting.key:55} {setting.meaning}")
    for found in RULES:
        print(f"{found.code:55} {found.title}")
    print("`grpo explain NAME` says more.", file=sys.stderr)
