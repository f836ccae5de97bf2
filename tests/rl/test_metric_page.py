from pathlib import Path

import pytest

from rl.metric_page import metric_page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_of_metrics_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--golden"):
        PAGE.write_text(metric_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == metric_page(), "`make golden` writes it anew"
