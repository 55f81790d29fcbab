"""The price sheet: the shipped one loads, one's own replaces or extends it, bad ones are refused by name."""

from datetime import date
from pathlib import Path

import pytest

from coevo.chat import Usage
from coevo.errors import ConfigError
from coevo.prices import Market, TokenPrice, load_prices


def test_every_shipped_entry_has_a_date_a_note_and_spot_below_on_demand() -> None:
    sheet = load_prices()
    for entry in (*sheet.instances.values(), *sheet.tokens.values()):
        assert entry.note
        assert entry.as_of <= sheet.as_of
    for name, instance in sheet.instances.items():
        assert instance.spot is not None
        assert 0 < instance.spot < instance.on_demand or name == "owned"
        assert bool(instance.gpu) == bool(instance.gpus)


def test_tokens_cost_by_kind() -> None:
    price = TokenPrice(prompt=2.0, cached=0.5, completion=8.0, as_of=date(2025, 1, 1))
    assert price.cost_usd(Usage(1_000_000, 400_000, 100_000)) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 8)
    plain = TokenPrice(prompt=2.0, completion=8.0, as_of=date(2025, 1, 1))
    assert plain.cost_usd(Usage(1_000_000, 400_000, 0)) == pytest.approx(2.0)


def test_an_instance_costs_by_share_time_and_market() -> None:
    one = load_prices().instance("p5.48xlarge")
    assert one.cost_usd(1800, share=one.share(gpus=2, cpus=48)) == pytest.approx(one.on_demand / 8)
    assert one.cost_usd(3600, market=Market.SPOT) == one.spot
    plain = load_prices().instance("m7i.2xlarge")
    assert plain.share(cpus=2) == pytest.approx(0.25)


def test_own_sheet_extends_the_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: shipped\nas_of: 2026-01-02\ninstances: {box: {cpus: 2, on_demand: 0.5, region: here, as_of: 2026-01-02}}\n", "utf-8"
    )
    sheet = load_prices(file)
    assert sheet.instance("box").on_demand == 0.5
    assert sheet.instance("g6.xlarge").gpu == "L4"
    with pytest.raises(ConfigError, match="no spot price"):
        sheet.instance("box").usd_per_hour(Market.SPOT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "no mapping"),
        ("a: [", "not YAML"),
        ("note: no date", "as_of"),
        ("as_of: 2026-01-01\nextends: other", "extend the shipped one only"),
        ("as_of: 2026-01-01\ntokens: {m: {prompt: -1, completion: 1, as_of: 2026-01-01}}", "tokens.m.prompt"),
        ("as_of: 2026-01-01\ninstances: {i: {cpus: 2, on_demand: .inf, region: r, as_of: 2026-01-01}}", "instances.i.on_demand"),
        ("as_of: 2026-01-01\npices: {}", "pices"),
    ],
)
def test_bad_sheets_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message):
        load_prices(file)


def test_unknown_names_say_the_nearest_and_missing_files_their_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'g6\.xlarge'"):
        load_prices().instance("g6.xlarg")
    with pytest.raises(ConfigError, match=r"did you mean 'gpt-4\.1"):
        load_prices().token_price("gpt-4.2")
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_prices(tmp_path / "nowhere.yaml")
