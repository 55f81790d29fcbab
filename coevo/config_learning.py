"""The part of a configuration that says what is learned and how it is measured: arms, rows, fine-tuning, the final grid."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from coevo.config_section import Config

__all__ = ["Arm", "DatasetConfig", "EvaluateConfig", "TrainConfig"]


class Arm(StrEnum):
    """What an adapter is trained on. All but the two imitation arms are mixed with the weak model's own successful turns."""

    CORRECTION = "correction"
    """Rewrites whose gain replay has verified, at exactly the prompt that the weak model saw: the method."""
    CORRECTION_UNVERIFIED = "correction_unverified"
    """The expert's first rewrite of the first suspected turn, taken without replaying anything: the paper's arm."""
    CORRECTION_CALL_ONLY = "correction_call_only"
    """The verified rewrites without their strategy sentence."""
    CORRECTION_HIGHEST_GAIN = "correction_highest_gain"
    """The verified rewrite of each turn that gains most, whatever `dataset.selection` gives the others."""
    IMITATION = "imitation"
    """Turns of the expert's successful episodes under the same harness."""
    IMITATION_FULL = "imitation_full"
    """Whole successful episodes of the expert, mixed with whole successful episodes of the weak model, as the paper did."""
    EXPERT_FINISH = "expert_finish"
    """The expert takes over at the failing turn and plays to the end: all of its turns, where it succeeds."""
    SELF_SUCCESS = "self_success"
    """The weak model's own successful turns alone: what the mix does without corrections."""
    RANDOM_TURN = "random_turn"
    """The expert's rewrite of a turn drawn at random from the same failed episodes: what it matters where the rewrite lands."""
    LAST_TURN = "last_turn"
    """The expert's rewrite of the last turn of the same failed episodes."""
    MASK_FAILED = "mask_failed"
    """The weak model's own turns up to the failing one, which is left out and not rewritten: what the rewrite adds to the rest."""


class DatasetConfig(Config):
    """Which rows are trained on."""

    arms: tuple[Arm, ...] = (Arm.CORRECTION, Arm.IMITATION)
    """Arms to build, train and evaluate (`coevo.config.Arm`). None: a run evolves and measures the harness and learns nothing."""
    rows: int = Field(240, ge=8)
    """Rows (trained turns) per arm, at most; arms are cut to the smallest."""
    self_success_share: float = Field(0.5, ge=0, lt=1)
    """Share of rows taken from the weak model's own successes, in every arm but `imitation` (0.12: the paper's)."""
    self_success: Literal["none", "random", "contrast", "confirmed", "confirmed_random"] = "contrast"
    """`contrast`: turns that settle the same kind of decision as the corrections, with the other outcome; `confirmed`: of these the ones
    at which the expert makes the same call, with its strategy sentence, so that a sentence does not tell a rewritten turn from a kept
    one; `random`: any; `confirmed_random`: of any turns the confirmed ones, so that the model also learns what to say where nothing is
    decided; `none`: no own turns, whatever the share (one-sided corrections over-generalize: this shows how much)."""
    selection: Literal["lowest_nll", "highest_gain"] = "lowest_nll"
    """Which verified rewrite of a turn is trained on: the one nearest to how the weak model writes, or the one that gains most."""
    token_tolerance: float = Field(0.10, gt=0)
    """Trained tokens of an arm may differ by this share from the first arm's; rows are exchanged within an arm until they do not, and what
    no exchange can mend is reported."""
    preference_pairs: bool = False
    """Also write the verified corrections as preference pairs: the weak turn rejected, the rewrite chosen."""

    @property
    def confirms(self) -> bool:
        """Whether the expert is asked what it would do at the weak model's own turns."""
        return self.self_success in ("confirmed", "confirmed_random")


class TrainConfig(Config):
    """Fine-tuning."""

    method: Literal["lora", "full"] = "lora"
    """`lora`: an adapter; `full`: every weight, which wants a learning rate about ten times smaller, and a checkpoint of three times the
    model in fp32."""
    rank: int = Field(16, ge=1)
    """LoRA rank (the paper uses 16 or 64)."""
    lora_alpha: int = Field(32, ge=1)
    """LoRA scale numerator."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate; a million-parameter model wants more than the paper's 1e-4."""
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Grid from which each arm gets its own rate, chosen on `evaluate.tuning_instances` fresh selection instances (`coevo tune`); empty:
    `learning_rate` for all."""
    epochs: int = Field(2, ge=1)
    """Passes over the rows."""
    global_batch: int = Field(8, ge=1)
    """Rows per optimizer step over all workers."""
    micro_batch: int | None = Field(None, ge=1)
    """Rows of one forward pass of one worker, a divisor of its share of the global batch; null takes the whole share. Long rows want 1."""
    packing: bool = False
    """Lay the rows of a micro batch end to end instead of padding them to the longest; each still sees only itself, and the gradient is the
    same. Pays with attention kernels that skip what lies between rows (`flash_attention_2`, `flex_attention`)."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = "auto"
    """Attention kernel; `auto` is the model's default. Packed rows of tens of thousands of tokens need one of the last two on GPUs: `sdpa`
    would build a mask of the length squared."""
    max_length: int = Field(1024, ge=8)
    """Longest row in tokens (the paper: 49,152, or 98,304 where more than 5 % of the rows would be cut). Longer rows are left out of the
    dataset and counted; more than 5 % of them is an error that names a length that suffices."""
    workers: int = Field(2, ge=1)
    """Training workers."""
    zero_stage: Literal[0, 2, 3] = 2
    """DeepSpeed ZeRO stage: 2 shards gradients and optimizer, 3 also the weights."""
    save_steps: int = Field(20, ge=1)
    """Optimizer steps between checkpoints."""
    max_failures: int = Field(2, ge=0)
    """Worker losses that a job survives."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; each gives an adapter, intervals resample them."""
    report_to: tuple[Literal["wandb", "mlflow", "tensorboard", "trackio"], ...] = ()
    """Trackers that also get loss, gradient norm and learning rate of every step; the packages must be installed on the training workers,
    and their accounts come from the workers' environment. The run's own curve is stored in any case."""


class EvaluateConfig(Config):
    """The final grid."""

    instances: int = Field(200, ge=2)
    """Instances of the test stream, opened once."""
    transfer_instances: int = Field(80, ge=2)
    """Fresh selection instances on which weak model and expert are compared under both harnesses."""
    tuning_instances: int = Field(120, ge=2)
    """Fresh selection instances on which learning rates are chosen, the same for every arm and rate; played only with a grid in
    `train.learning_rates`."""
    repeats: int = Field(1, ge=1)
    """Episodes per instance and cell."""
    under_h0: tuple[Arm, ...] | None = None
    """Arms that are also measured under the base harness; null: all. The base model and the expert always are."""
    level: float = Field(0.95, gt=0.5, lt=1)
    """Coverage of the intervals."""
