"""`tokenmargin explore`: one file, complete in itself."""

import re
from pathlib import Path

from tokenmargin.cli import main
from tokenmargin.report.explore.page import MATHEMATICS, PAGE, STATIC, explore_page


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    assert main(["explore", "--out", str(tmp_path / "new" / "page.html")]) == 0
    text = (tmp_path / "new" / "page.html").read_text()
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', text)
    assert "default-src 'none'" in text
    assert not re.search(
        r"^\s*(import|export) [^`]*(from|const|function|class)", text.partition('id="mathematics"')[2], flags=re.M
    )


def test_every_module_is_in_the_page_once_and_no_name_twice() -> None:
    """Modules are joined into one scope: a name declared in two of them would be an error there."""
    assert {path.name for path in STATIC.glob("*.js")} == {*MATHEMATICS, *PAGE}
    for group in (MATHEMATICS, PAGE):
        names = [
            name
            for module in group
            for name in re.findall(
                r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", (STATIC / module).read_text(), flags=re.M
            )
        ]
        assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


def test_a_picture_for_shared_links() -> None:
    assert '<meta property="og:image" content="explore.png">' in explore_page(picture="explore.png")
    assert "og:image" not in explore_page()
