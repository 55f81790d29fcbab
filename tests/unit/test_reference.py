"""The reference policy as a model.

1. It solves every instance under the base and under an evolved harness, in both styles.
2. A composite tool is used where it covers the plan, and stands in for tools that the harness hides.
3. A renamed tool is called by the name that the harness shows.
4. Its source is picklable and opens the model that it names.
"""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from coevo.chat import Message, ModelRequest, Role, Sampling
from coevo.episode import Agent, play
from coevo.errors import ModelError
from coevo.formats.mini import MiniFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.mini.harnesses import base_demo, hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.reference import ReferenceModel, ReferenceSource
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode, Status
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, Style

FAMILY = load_family("payroll")
INSTANCES = range(20)
RENAMED = {"list_employees": "roster", "get_record": "pull_file"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return FolderTokenizer(folder)


def renamed() -> HarnessBundle:
    """The base harness with two tools under other names."""
    files = base_demo(FAMILY).bundle.files()
    lines = [
        f"- {{tool: {name}, as: {RENAMED[name]}}}" if name in RENAMED else f"- {{tool: {name}}}"
        for name in ("list_employees", "get_record", "calc", "submit_pay", "escalate", "finish")
    ]
    return HarnessBundle.from_files(files | {"tools.yaml": "\n".join(lines) + "\n"})


def played(bundle: HarnessBundle, style: Style, tokenizer: FolderTokenizer, count: int) -> list[Episode]:
    model = ReferenceModel(FAMILY, style, bundle, MiniFormat(), shared_pool())
    agent = Agent(model, bundle, MiniFormat(), tokenizer, 4096, Sampling(0.0, 1.0, 96))

    async def every() -> list[Episode]:
        instances = [FAMILY.instance(Stream.SEARCH, number, Size.MINI, diversity=8) for number in INSTANCES[:count]]
        return [await play(one, family=FAMILY, agent=agent, sandboxes=shared_pool()) for one in instances]

    return asyncio.run(every())


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("harness", ["base", "hand_made"])
def test_it_solves_every_instance(harness: str, style: Style, tokenizer: FolderTokenizer) -> None:
    """Promises 1 and 2: under the hand-made harness the record and the sum are reachable through the composite alone."""
    bundle = (base_demo(FAMILY) if harness == "base" else hand_made(FAMILY)).bundle
    episodes = played(bundle, style, tokenizer, len(INSTANCES))
    assert [episode.error for episode in episodes] == [""] * len(INSTANCES)
    assert all(episode.status is Status.COMPLETED and episode.success for episode in episodes)
    called = {turn.call.name for episode in episodes for turn in episode.turns if turn.call is not None}
    executed = {call.name for episode in episodes for call in episode.world_log}
    assert executed >= {"get_record", "calc"}
    if harness == "base":
        assert "compute_pay" not in called
        assert called >= {"get_record", "calc"}
    else:
        assert all(episode.component_use.get("tool:compute_pay", 0) > 0 for episode in episodes)
        assert not called & {"get_record", "calc"}


def test_a_composite_is_taken_although_the_plain_tools_are_shown(tokenizer: FolderTokenizer) -> None:
    """Promise 2: one call for two planned ones."""
    made = hand_made(FAMILY).bundle
    tools = made.files()["tools.yaml"] + "- tool: get_record\n- tool: calc\n"
    bundle = HarnessBundle.from_files(made.files() | {"tools.yaml": tools})
    for episode in played(bundle, Style.REACTIVE, tokenizer, 6):
        assert episode.success
        assert episode.component_use["tool:compute_pay"] > 0


def test_a_composite_that_covers_nothing_is_left_alone(tokenizer: FolderTokenizer) -> None:
    """Promise 2: a probe that the plan does not need is not called."""
    probe = (
        'def probe(employee: str) -> dict:\n    """check an employee"""\n'
        '    record = get_record(employee=employee)\n    return {"employee": record["employee"], "ok": True}\n'
    )
    base = base_demo(FAMILY).bundle
    tools = base.files()["tools.yaml"] + "- composite: probe\n"
    bundle = HarnessBundle.from_files(base.files() | {"tools.yaml": tools, "tools/probe.py": probe})
    for episode in played(bundle, Style.REACTIVE, tokenizer, 6):
        assert episode.success
        assert "tool:probe" not in episode.component_use


@pytest.mark.parametrize("style", list(Style))
def test_renamed_tools_are_called_by_their_shown_name(style: Style, tokenizer: FolderTokenizer) -> None:
    """Promise 3."""
    for episode in played(renamed(), style, tokenizer, 5):
        assert episode.success
        called = {turn.call.name for turn in episode.turns if turn.call is not None}
        assert set(RENAMED.values()) <= called
        assert not set(RENAMED) & called


def test_the_source_is_picklable_and_names_its_model() -> None:
    """Promise 4."""
    source = ReferenceSource("payroll", Style.PLAN_FIRST, hand_made(FAMILY).bundle, "mini")
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.open().model_id == source.model_id
    assert source.model_id.startswith("reference:payroll/")
    assert ReferenceSource("payroll", Style.REACTIVE, hand_made(FAMILY).bundle, "mini").model_id != source.model_id


def test_it_plays_only_inside_episodes() -> None:
    """A request without the replayable position is refused with the way out."""
    model = ReferenceModel(FAMILY, Style.REACTIVE, base_demo(FAMILY).bundle, MiniFormat(), shared_pool())
    request = ModelRequest((Message(Role.USER, "hello"),), (), Sampling(), session="s", seed=0, model_id=model.model_id)
    with pytest.raises(ModelError, match="only inside episodes"):
        asyncio.run(model.complete(request))
