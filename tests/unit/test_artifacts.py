"""Stages, runs and episodes in the store.

1. A manifest exists only when all it names does, and only when every expected row is accounted for (I5, R2).
2. A run name belongs to one configuration; another is refused with the differing fields, and nothing is written.
3. Episodes commit one by one; infrastructure errors never do; one id has one outcome (I3, I4).
4. Wherever a writer is killed, a resumed one ends with each id done exactly once (R9, R11).
5. Compaction loses nothing, and its columns carry the Inspect Scout names.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from random import Random

import orjson
import pyarrow.parquet as pq
import pytest

from coevo.chat import Sampling
from coevo.errors import ConfigError, StoreError
from coevo.identity import content_hash
from coevo.ports import PutResult
from coevo.records import (
    Attempt,
    CallRecord,
    Checkpoint,
    Correction,
    CorrectionCandidate,
    Episode,
    EpisodeSpec,
    Grade,
    Localization,
    LossSpan,
    Measurement,
    MessageRecord,
    PromptOrigin,
    Record,
    Status,
    TrainingRow,
    Turn,
    UsageRecord,
)
from coevo.store import LocalStore
from coevo.store.artifacts import Held, RunDirectory, StageKey, StageWriter, input_hash, is_done, read_manifest, read_records, read_rows
from coevo.store.episodes import EpisodeStore, read_episodes
from coevo.store.tables import TABLES, arrow_schema, encode_rows, read_parquet, table_of


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def keys(store: LocalStore) -> list[str]:
    return [info.key for info in store.list("")]


def episode(number: int, *, status: Status = Status.COMPLETED, success: bool = True, repeat: int = 0) -> Episode:
    spec = EpisodeSpec(
        task_key=f"payroll/mini/audit/search/{number}",
        world_version="1",
        harness_hash="h" * 64,
        model_id="mini@abc",
        sampling=Sampling(),
        repeat=repeat,
    )
    messages = (
        MessageRecord(role="system", content="be exact"),
        MessageRecord(role="user", content="audit é"),
        MessageRecord(role="assistant", content="look", calls=(CallRecord(name="read", arguments={"id": 7, "deep": {"x": [1, None]}}),)),
        MessageRecord(role="tool", content='{"pay": 12.5}'),
    )
    turn = Turn(
        message_index=(0, 1),
        prompt_shared=0,
        prompt_suffix=(1, 2, 3),
        completion_text="look <call>",
        completion_token_ids=(4, 5),
        completion_logprobs=(-0.1, -0.25),
        call=CallRecord(name="read", arguments={"id": 7}),
    )
    grade = Grade(success=success, score=float(success), checkpoints=(Checkpoint(name="total", weight=1.0, passed=success),))
    return Episode(
        id=spec.id,
        spec=spec,
        status=status,
        grade=None if status is Status.INFRA_ERROR else grade,
        messages=messages,
        turns=(turn,),
        usage=UsageRecord(prompt_tokens=3, completion_tokens=2),
    )


def row(number: int) -> TrainingRow:
    return TrainingRow(
        arm="correction",
        prompt_token_ids=(1, 2, number),
        prompt_origin=PromptOrigin.SAMPLED,
        completion_token_ids=(9, 9),
        loss_span=LossSpan(start=3, stop=5),
        episode_id=f"e{number}",
        turn=number,
        task_key="payroll/mini/audit/search/1",
        source="correction",
    )


def begin(store: LocalStore, *, expected: int, **inputs: str) -> StageWriter:
    return StageWriter.begin(store, run="run", stage="dataset", inputs=inputs, expected=expected, code_version="0.1.0", config_hash="c")


def test_a_stage_is_done_when_its_manifest_exists(store: LocalStore) -> None:
    """I5, R2."""
    writer = begin(store, expected=7, episodes="abc")
    assert not is_done(store, writer.key)
    first = writer.write_records([row(1), row(2)])
    writer.write_bytes("tokenizer.json", b"{}")
    writer.drop("too_long")
    writer.drop("too_long")
    writer.fail("no continuation")
    writer.owe("e9", attempts=5)
    writer.owe("e9", attempts=4)
    writer.owe("e8", attempts=5)
    writer.spend(tokens=100)
    writer.spend(tokens=20, held=Held(expert_usd=0.5))
    assert read_manifest(store, writer.key) is None
    manifest = writer.commit()
    assert is_done(store, writer.key)
    assert read_manifest(store, writer.key) == manifest
    assert manifest.rows.model_dump() == {"written": 2, "dropped": {"too_long": 2}, "failed": {"no continuation": 1}}
    assert [(owed.id, owed.attempts) for owed in manifest.owed] == [("e8", 5), ("e9", 5)]
    assert (manifest.tokens, manifest.cost_usd, manifest.code_version) == (120, 0.5, "0.1.0")
    assert manifest.inputs == {"episodes": "abc"}
    assert manifest.output("part") == first
    assert manifest.output("tokenizer").key.endswith(".json")
    with pytest.raises(StoreError, match="0 outputs named 'nothing'"):
        manifest.output("nothing")
    assert list(read_records(store, [first], TrainingRow)) == [row(1), row(2)]
    assert next(read_rows(store, [first], columns=["prompt_token_ids", "loss_start"])) == {"prompt_token_ids": [1, 2, 1], "loss_start": 3}
    assert keys(store)[-1].startswith("run/dataset/")


def test_a_manifest_carries_its_bill(store: LocalStore) -> None:
    """Held seconds, tokens by kind, dollars of both sorts; None = not measured, or no price."""
    writer = StageWriter.begin(
        store, run="run", stage="bill", inputs={}, expected=0, code_version="1", meter=lambda: Held(60.0, 60.0, 2.5, 0.25)
    )
    writer.spend(usage=[UsageRecord(prompt_tokens=60, cached_tokens=40), UsageRecord(prompt_tokens=40, completion_tokens=10)])
    writer.spend(tokens=5, usage=[UsageRecord(prompt_tokens=1, completion_tokens=1)], held=Held(4.0, 0.0, 0.5))
    bill = writer.commit()
    assert (bill.gpu_s, bill.cpu_s) == (64.0, 60.0)
    assert (bill.tokens, bill.prompt_tokens, bill.cached_tokens, bill.completion_tokens) == (117, 101, 40, 11)
    assert (bill.compute_usd, bill.expert_usd, bill.cost_usd) == (3.0, 0.25, 3.25)
    assert Held(5.0, 6.0, 1.5, None).since(Held(2.0, 2.0)) == Held(3.0, 4.0, 1.5, None)
    silent = begin(store, expected=0).commit()
    assert (silent.gpu_s, silent.prompt_tokens, silent.compute_usd, silent.cost_usd) == (None, None, None, None)


@pytest.mark.parametrize("lost", [-1, 1])
def test_lost_or_invented_rows_refuse_to_close(store: LocalStore, lost: int) -> None:
    """R2: expected = written + failed + dropped + owed."""
    writer = begin(store, expected=2 + lost)
    writer.write_records([row(1), row(2)])
    with pytest.raises(StoreError, match="lost or invented rows") as caught:
        writer.commit()
    assert f"expected {2 + lost}, accounted 2" in str(caught.value)
    assert not is_done(store, writer.key)


def test_a_manifest_never_names_what_is_not_there(store: LocalStore) -> None:
    """I5."""
    writer = begin(store, expected=1)
    output = writer.write_records([row(1)])
    store.delete(output.key)
    with pytest.raises(StoreError, match="not there"):
        writer.commit()
    assert not is_done(store, writer.key)
    other = begin(store, expected=0, other="x")
    other.name_output("run/elsewhere/x.parquet", hash="h")
    with pytest.raises(StoreError, match=r"elsewhere/x\.parquet"):
        other.commit()


def test_uncounted_and_self_committed_rows(store: LocalStore) -> None:
    writer = begin(store, expected=3)
    writer.wrote(3)
    writer.write_rows([{"a": 1}, {"a": None}], arrow_schema({"a": "int"}), name="index", counted=False)
    manifest = writer.commit()
    assert manifest.rows.written == 3
    assert list(read_rows(store, [manifest.output("index")])) == [{"a": 1}, {"a": None}]


def test_damaged_outputs_are_noticed(store: LocalStore) -> None:
    writer = begin(store, expected=1)
    output = writer.write_records([row(1)])
    info = store.head(output.key)
    assert info is not None
    store.put_if_match(output.key, b"damaged", etag=info.etag)
    with pytest.raises(StoreError, match="not the one its manifest names"):
        list(read_rows(store, [output]))


def test_the_same_inputs_have_the_same_key(store: LocalStore) -> None:
    """I4."""
    one, two = begin(store, expected=0, a="1", b="2"), begin(store, expected=0, b="2", a="1")
    assert one.key == two.key == StageKey("run", "dataset", input_hash("dataset", {"b": "2", "a": "1"}, config_hash="c"))
    different = [input_hash("other", {"a": "1"}), input_hash("dataset", {"a": "2"}), input_hash("dataset", {"a": "1"}, config_hash="x")]
    assert len({*different, input_hash("dataset", {"a": "1"})}) == 4


def test_two_writers_of_a_stage_agree_on_the_first_manifest(store: LocalStore) -> None:
    clocks = iter([0.0, 0.0, 1.0, 2.0])
    writers = [
        StageWriter.begin(store, run="r", stage="s", inputs={}, expected=1, code_version="1", clock=lambda: next(clocks)) for _ in range(2)
    ]
    for writer in writers:
        writer.write_records([row(1)])
    first, second = (writer.commit() for writer in writers)
    assert first == second
    assert first.wall_s == 1.0
    assert len(keys(store)) == 2, "equal parts are one object"


def test_leftovers_of_a_killed_writer_do_no_harm(store: LocalStore) -> None:
    """R11: parts without a manifest are ignored, and the next try may write other parts."""
    begin(store, expected=2).write_records([row(1)])
    writer = begin(store, expected=2)
    outputs = [writer.write_records([row(2), row(3)])]
    assert writer.commit().outputs == tuple(outputs)
    assert list(read_records(store, outputs, TrainingRow)) == [row(2), row(3)]


def test_parts_hold_one_kind_of_record(store: LocalStore) -> None:
    writer = begin(store, expected=1)
    for records in ([], [row(1), episode(1)]):
        with pytest.raises(StoreError, match="exactly one kind"):
            writer.write_records(records)
    with pytest.raises(ConfigError, match="no table"):
        table_of(Measurement)


def test_rows_must_fit_their_schema() -> None:
    schema = arrow_schema({"a": "int"})
    with pytest.raises(StoreError, match="its schema lacks"):
        encode_rows([{"a": 1, "b": 2}], schema)
    with pytest.raises(StoreError, match="does not fit"):
        encode_rows([{"a": "one"}], schema)
    with pytest.raises(ConfigError, match="unknown column type"):
        arrow_schema({"a": "integer"})
    assert read_parquet(encode_rows([], schema)) == []


def examples() -> list[Record]:
    call = CallRecord(name="f", arguments={"x": [1, {"y": None}]})
    candidate = CorrectionCandidate(strategy="s", call=call, text="t", schema_valid=True, gain_lower=0.1)
    correction = Correction(
        episode_id="e",
        turn=1,
        original="o",
        rewritten="r",
        candidates=(candidate,),
        chosen=0,
        chosen_by="nll",
        verified=True,
        gain_lower=0.1,
    )
    return [episode(1), row(1), Localization(episode_id="e", turn=None, method="replay"), correction]


@pytest.mark.parametrize("record", examples(), ids=lambda record: type(record).__name__)
def test_every_table_is_lossless_and_explicit(store: LocalStore, record: Record) -> None:
    writer = begin(store, expected=1)
    output = writer.write_records([record])
    assert list(read_records(store, [output], type(record))) == [record]
    file = pq.ParquetFile(BytesIO(store.get(output.key)))
    assert file.schema_arrow.equals(table_of(type(record)).schema())
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert {type(example) for example in examples()} == {table.kind for table in TABLES}


CONFIG = {"name": "a", "evolve": {"alpha": 0.1, "generations": 8}, "arms": ["correction"], "cluster": {"cpus": 4}, "seed": None}


def test_a_run_name_belongs_to_one_configuration(store: LocalStore) -> None:
    first = RunDirectory.open(store, name="runs-a", config=CONFIG)
    assert first.fresh
    again = RunDirectory.open(store, name="runs-a", config=dict(reversed(CONFIG.items())))
    assert not again.fresh
    assert again.config == first.config == CONFIG
    assert again.config_hash == first.config_hash == content_hash(CONFIG)
    assert again.key("rollout", "x.json") == "runs-a/rollout/x.json"
    assert orjson.loads(store.get("runs-a/config.json")) == CONFIG


def test_another_configuration_is_refused_with_the_ways_out(store: LocalStore) -> None:
    RunDirectory.open(store, name="a", config=CONFIG)
    before = {key: store.get(key) for key in keys(store)}
    changed = {**CONFIG, "evolve": {"alpha": 0.2, "generations": 8, "new": True}, "arms": ["correction", "imitation"]}
    with pytest.raises(ConfigError) as caught:
        RunDirectory.open(store, name="a", config=changed)
    text = str(caught.value)
    for part in ("evolve.alpha: 0.1 -> 0.2", "evolve.new: (absent) -> true", 'arms: ["correction"] -> ["correction","imitation"]'):
        assert part in text
    assert "generations" not in text
    for way in ("--set name=", "--set evolve.alpha=0.1", "coevo gc"):
        assert way in caught.value.fix
    assert caught.value.exit_code == 2
    assert {key: store.get(key) for key in keys(store)} == before


def test_fields_that_decide_nothing_may_differ(store: LocalStore) -> None:
    RunDirectory.open(store, name="a", config=CONFIG, ignore=["cluster"])
    moved = RunDirectory.open(store, name="a", config={**CONFIG, "cluster": {"cpus": 64}}, ignore=["cluster"])
    assert moved.config["cluster"] == {"cpus": 4}
    with pytest.raises(ConfigError, match="another configuration"):
        RunDirectory.open(store, name="a", config={**CONFIG, "clusters": 1}, ignore=["cluster"])


def test_a_field_of_a_later_version_differs_only_when_it_is_used(store: LocalStore) -> None:
    """A run that was begun before the field existed is resumed under its name; a value other than the default is another run."""
    RunDirectory.open(store, name="a", config=CONFIG)
    defaults = {**CONFIG, "evolve": {**CONFIG["evolve"], "later": 0}, "section": {"of": [], "its": None}}
    assert RunDirectory.open(store, name="a", config=defaults, defaults=defaults).config == CONFIG
    with pytest.raises(ConfigError, match="another configuration") as caught:
        RunDirectory.open(store, name="a", config={**defaults, "evolve": {**CONFIG["evolve"], "later": 1}}, defaults=defaults)
    assert "evolve.later: (absent) -> 1" in str(caught.value.seen)
    with pytest.raises(ConfigError, match="another configuration"):
        RunDirectory.open(store, name="a", config=defaults)


def test_episodes_commit_once(store: LocalStore) -> None:
    """I4."""
    episodes, one = EpisodeStore(store, "run"), episode(1)
    assert episodes.commit(one) is PutResult.WRITTEN
    assert episodes.commit(one) is PutResult.SAME
    assert episodes.has(one.id)
    assert episodes.get(one.id) == one
    assert keys(store) == [f"run/episodes/{one.id}.json.zst"]
    other = episode(1, success=False)
    assert other.id == one.id
    with pytest.raises(StoreError, match="another outcome"):
        episodes.commit(other)
    assert episodes.commit_first(other) == one
    assert episodes.get(one.id) == one
    two = episode(2, status=Status.MAX_TURNS, success=False)
    assert episodes.commit_first(two) == two
    assert episodes.committed_ids() == {one.id, two.id}
    with pytest.raises(StoreError, match="no such object"):
        episodes.get("f" * 64)


def test_infrastructure_errors_and_foreign_ids_are_never_committed(store: LocalStore) -> None:
    """I3: never graded, never averaged in."""
    episodes = EpisodeStore(store)
    for bad in (episode(1, status=Status.INFRA_ERROR), episode(1).model_copy(update={"grade": None})):
        for commit in (episodes.commit, episodes.commit_first):
            with pytest.raises(StoreError, match="graded outcomes"):
                commit(bad)
    with pytest.raises(StoreError, match="hash of its spec"):
        episodes.commit(episode(1).model_copy(update={"id": episode(2).id}))
    assert keys(store) == []


def test_attempts_are_counted_over_runs(store: LocalStore) -> None:
    episodes = EpisodeStore(store, "run")
    first = episodes.record_attempt(Attempt(id="a", number=0, outcome="infra_error", error="connection reset"))
    second = episodes.record_attempt(Attempt(id="a", number=0, outcome="completed", worker="w1"))
    assert (first.number, second.number) == (0, 1)
    episodes.record_attempt(Attempt(id="b", number=episodes.attempt_counts()["b"], outcome="completed"))
    assert episodes.attempt_counts() == {"a": 2, "b": 1}
    assert [(attempt.number, attempt.outcome) for attempt in episodes.attempts("a")] == [(0, "infra_error"), (1, "completed")]
    assert episodes.attempts("nobody") == ()
    for _ in range(12):
        episodes.record_attempt(Attempt(id="c", number=0, outcome="infra_error", wall_s=float(_)))
    assert [attempt.number for attempt in episodes.attempts("c")] == list(range(12))


class Killed(BaseException):
    """Stands for SIGKILL at a point of the program."""


class KillingStore(LocalStore):
    """A store whose process dies before or after a put."""

    def __init__(self, root: Path, *, after: int, before_put: bool) -> None:
        super().__init__(root)
        self.left, self.before_put = after, before_put

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        self.left -= 1
        if self.left < 0 and self.before_put:
            raise Killed
        result = super().put_if_absent(key, data)
        if self.left < 0:
            raise Killed
        return result


def test_killed_twenty_times_each_id_is_done_once(tmp_path: Path) -> None:
    """R9, H12: owed = wanted minus committed, whatever was interrupted."""
    wanted = [episode(number).id for number in range(30)]
    by_id = {episode(number).id: episode(number) for number in range(30)}
    rng, played = Random(4), []

    def work(store: LocalStore) -> None:
        episodes = EpisodeStore(store, "run")
        for id in episodes.owed(wanted):
            played.append(id)
            episodes.record_attempt(Attempt(id=id, number=episodes.attempt_counts()[id], outcome="completed"))
            episodes.commit(by_id[id])

    kills = 0
    for _ in range(20):
        try:
            work(KillingStore(tmp_path, after=rng.randrange(4), before_put=rng.random() < 0.5))
        except Killed:
            kills += 1
    work(LocalStore(tmp_path))
    episodes = EpisodeStore(LocalStore(tmp_path), "run")
    assert kills == 20
    assert episodes.committed_ids() == set(wanted)
    assert episodes.owed(wanted) == ()
    assert len(played) <= len(wanted) + kills
    assert all(count >= 1 for count in episodes.attempt_counts().values())
    assert [episodes.get(id) for id in wanted] == [by_id[id] for id in wanted]


def test_owed_keeps_order_and_drops_doubles(store: LocalStore) -> None:
    episodes = EpisodeStore(store)
    episodes.commit(episode(2))
    ids = [episode(n).id for n in (3, 2, 1, 3)]
    assert episodes.owed(ids) == (episode(3).id, episode(1).id)


def test_compaction_is_lossless_and_speaks_scout(store: LocalStore) -> None:
    episodes = EpisodeStore(store, "run")
    made = [episode(1), episode(2, status=Status.MAX_TURNS, success=False), episode(1, repeat=1)]
    for one in made:
        episodes.commit(one)
    output = episodes.compact([one.id for one in made], "run/rollout/x/part-0.parquet")
    assert output.rows == 3
    assert read_episodes(store, output.key) == tuple(made)
    assert episodes.compact([one.id for one in made], output.key) == output
    with pytest.raises(StoreError, match="something else"):
        episodes.compact([made[0].id], output.key)
    with pytest.raises(StoreError, match="no such object"):
        episodes.compact(["f" * 64], "run/other.parquet")
    first, second, third = read_parquet(store.get(output.key))
    assert (first["transcript_id"], first["task_set"], first["task_id"]) == (made[0].id, "payroll", made[0].spec.task_key)
    assert (first["agent"], first["model"], first["score"], first["success"], first["limit"]) == ("h" * 64, "mini@abc", 1.0, True, None)
    assert (second["success"], second["limit"], third["task_repeat"]) == (False, "turns", 1)
    assert (first["total_tokens"], first["message_count"], first["error"]) == (5, 4, None)
    messages = orjson.loads(first["messages"])
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    call = messages[2]["tool_calls"][0]
    assert (call["function"], call["arguments"]["id"], messages[3]["tool_call_id"]) == ("read", 7, call["id"])
