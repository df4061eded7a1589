from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramet.report.html as report
from ramet.errors import ConfigError
from ramet.report.html import write_report
from ramet.report.rollouts import ranges, safe_json, spread
from ramet.tracking.jsonl import JsonlTracker


def embedded(page: str, kind: str) -> list[str]:
    return re.findall(rf'<script type="application/json" data-kind="{kind}">(.*?)</script>', page, re.DOTALL)


def test_the_report_goes_beside_the_run_or_where_it_is_asked_to(run: Path, tmp_path: Path) -> None:
    assert write_report(run) == run / "report.html"
    assert write_report(run, tmp_path / "a" / "b.html") == tmp_path / "a" / "b.html"
    assert (tmp_path / "a" / "b.html").read_bytes() == (run / "report.html").read_bytes()
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_an_earlier_report_is_replaced(run: Path) -> None:
    write_report(run)
    (run / "summary.json").unlink()
    size = (run / "report.html").stat().st_size
    assert write_report(run).stat().st_size < size


def test_what_is_no_report_is_not_replaced(run: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.html"
    thesis.write_text("<!doctype html>\n<title>My thesis</title>")
    with pytest.raises(ConfigError) as caught:
        write_report(run, thesis)
    assert str(caught.value) == f"report: {thesis} is there already and is not a report of Ramet's; name another file"
    assert thesis.read_text() == "<!doctype html>\n<title>My thesis</title>"


def test_a_report_follows_no_links(run: Path, tmp_path: Path) -> None:
    write_report(run)
    link, letter = tmp_path / "link.html", tmp_path / "letter"
    letter.write_text("precious")
    for target in (run / "report.html", letter, tmp_path / "nowhere"):
        link.symlink_to(target)
        with pytest.raises(ConfigError, match=f"^report: {link} is there already"):
            write_report(run, link)
        link.unlink()
    (tmp_path / ".out.html.tmp").symlink_to(letter)  # what the temporary file was once called
    write_report(run, tmp_path / "out.html")
    assert letter.read_text() == "precious"


def test_a_report_that_cannot_be_written_names_the_place(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        write_report(run, tmp_path / "file" / "report.html")
    assert str(caught.value) == f"report: {tmp_path / 'file'}: File exists"


def test_a_run_that_can_only_be_read_is_reported_elsewhere(run: Path, tmp_path: Path, small_disk: Any) -> None:
    here = small_disk.folder / "run"
    shutil.copytree(run, here)
    small_disk.make("ro")
    with pytest.raises(ConfigError) as caught:
        write_report(here)
    assert str(caught.value) == (
        f"report: {here / 'report.html'}: Read-only file system; its disk can only be read, so make it writable or "
        f"choose another folder; `ramet report {here} --out FILE` writes it elsewhere"
    )
    assert write_report(here, tmp_path / "made" / "here.html") == tmp_path / "made" / "here.html"
    assert report.MARKER in (tmp_path / "made" / "here.html").read_bytes()


def test_a_full_disk_is_named_and_an_earlier_report_stays(run: Path, small_disk: Any) -> None:
    out = write_report(run, small_disk.folder / "report.html")
    before = out.read_bytes()
    small_disk.fill()
    with pytest.raises(ConfigError) as caught:
        write_report(run, out)
    assert str(caught.value).startswith(f"report: {out}: No space left")
    assert out.read_bytes() == before


def test_a_run_without_rollouts_still_has_a_report(tmp_path: Path) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl").log(1, {"sft/loss": 2.0})
    page = write_report(tmp_path).read_text(encoding="ascii")
    assert (len(embedded(page, "overview")), embedded(page, "step")) == (1, [])


def test_the_policy_allows_exactly_this_script_and_this_style(run: Path) -> None:
    page = write_report(run).read_text(encoding="ascii")
    assert "default-src 'none'" in page
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in page


def test_the_page_refers_to_nothing_outside_itself(run: Path) -> None:
    page = write_report(run).read_text(encoding="ascii")
    assert re.findall(r"""(?:src|href)\s*=\s*["']?[^"'#>\s]""", page) == []
    assert re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML|outerHTML|insertAdjacentHTML|eval\(", page) == []
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_embedded_text_cannot_end_its_element(make_run: Callable[..., Path]) -> None:
    hostile = "</script><script>alert(1)</script><!--<script>&amp;\u2028\ud800"
    page = write_report(make_run((hostile, hostile, hostile), question=hostile)).read_text(encoding="ascii")
    (step,) = embedded(page, "step")
    assert not set("<>&") & set(step)
    (group,) = json.loads(step)
    assert group["question"] == hostile
    assert page.count("<script") == 1 + len(embedded(page, "step")) + len(embedded(page, "overview"))


def test_safe_json_is_json_of_the_same_value() -> None:
    value = {"<a&b>": ["\u202e", "\ud800", 1.5, None, "\\u003c"]}
    assert json.loads(safe_json(value)) == value
    assert safe_json(value).isascii()


def test_all_steps_are_in_the_file_when_they_fit(run: Path) -> None:
    page = write_report(run).read_text(encoding="ascii")
    assert [json.loads(text)[0]["step"] for text in embedded(page, "step")] == [1, 20, 40]
    assert json.loads(embedded(page, "overview")[0])["notes"] == []


def test_a_large_run_keeps_its_first_and_last_step_and_says_what_is_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = embedded(write_report(run).read_text(encoding="ascii"), "step")
    monkeypatch.setattr(report, "MAX_BYTES", len(whole[0]) + len(whole[2]) + 100)
    page = write_report(run).read_text(encoding="ascii")
    assert [json.loads(text)[0]["step"] for text in embedded(page, "step")] == [1, 40]
    (note,) = json.loads(embedded(page, "overview")[0])["notes"]
    assert "2 of 3 steps" in note and "left out for its size: 20." in note


def test_a_step_that_is_too_large_alone_keeps_its_first_groups(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = embedded(write_report(run).read_text(encoding="ascii"), "step")
    monkeypatch.setattr(report, "MAX_BYTES", len(whole[0]) // 2)
    page = write_report(run).read_text(encoding="ascii")
    assert [[group["index"] for group in json.loads(text)] for text in embedded(page, "step")] == [[0]]
    notes = json.loads(embedded(page, "overview")[0])["notes"]
    assert any("Step 1: only its first groups are shown, 2 did not fit" in note for note in notes)


def test_an_unreadable_step_is_noted_and_the_others_are_shown(run: Path) -> None:
    (run / "rollouts" / "step_000020.jsonl.gz").write_bytes(b"no gzip at all")
    (run / "rollouts" / "step_000040.jsonl.gz").unlink()
    (run / "rollouts" / "step_000040.jsonl.gz").mkdir()
    page = write_report(run).read_text(encoding="ascii")
    notes = json.loads(embedded(page, "overview")[0])["notes"]
    assert json.loads(embedded(page, "step")[0])[0]["step"] == 1
    assert any(note.startswith("Step 40: its rollouts could not be read") for note in notes)


def test_steps_are_chosen_evenly_from_both_ends() -> None:
    assert list(spread(9))[:5] == [0, 8, 4, 2, 6]
    for n in range(12):
        assert sorted(spread(n)) == list(range(n))


def test_left_out_steps_are_named_as_ranges() -> None:
    assert ranges([7, 1, 2, 3, 9, 10]) == "1-3, 7, 9-10"
    assert ranges([]) == ""


def test_the_run_name_cannot_act_in_the_title(run: Path) -> None:
    odd = run.rename(run.with_name("<b>&x"))
    page = write_report(odd).read_text(encoding="ascii")
    assert "<title>&lt;b&gt;&amp;x - Ramet</title>" in page
