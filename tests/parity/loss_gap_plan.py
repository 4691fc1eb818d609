"""What loss_gap.py runs: options and a plan file become a list of runs, each with its flags of the trainer."""
import argparse
import glob
import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from loss_gap_report import Bars

ROOT = Path(__file__).resolve().parents[2]
USAGE, NOT_HERE = 2, 77  # our exit codes

SMALL = {"seq_len": 512, "tokens_per_step": 32768, "rates": "6e-4,1.2e-3,2.4e-3", "bars": Bars(mean=0.005, error=0.003)}
FULL = {"seq_len": 1024, "tokens_per_step": 262144, "rates": "6e-4,1.2e-3", "bars": Bars(bound=0.02)}
LARGEST_MICRO_BATCH = 65536  # tokens


class Failure(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# ---- options ----


def make_parser(description):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", nargs="?", type=Path, default=ROOT / "train_gpt2_fp8")
    p.add_argument("--plan", type=Path, metavar="FILE", help="options as TOML or JSON")
    p.add_argument("--model", default="d6", help="of the trainer; gpt2: 124M with bars and settings of its own [d6]")
    p.add_argument("--train_data", default="", metavar="GLOB", help="token shards; none: the built-in sample")
    p.add_argument("--val_data", default="", metavar="GLOB")
    p.add_argument("--seeds", type=int, default=8, metavar="N", help="how many, from --first_seed up [8]")
    p.add_argument("--first_seed", type=int, default=1, metavar="K")
    p.add_argument("--rates", metavar="A,B", help="peak learning rates [6e-4,1.2e-3,2.4e-3; gpt2: 6e-4,1.2e-3]")
    p.add_argument("--setting", action="append", metavar="NAME=FLAGS", help="instead of --rates: flags of both sides")
    p.add_argument("--variant", action="append", metavar="NAME=FLAGS", help="flags of what is compared, FP8 if they name no "
                   "--precision [fp8=]")
    p.add_argument("--baseline", metavar="NAME=FLAGS", help="what it is compared with [bf16=--precision bf16]")
    p.add_argument("--flags", default="", metavar="FLAGS", help="of the trainer, for all runs (--flags='--x')")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--warmup_steps", type=int, default=30)
    p.add_argument("--seq_len", type=int, metavar="T", help="[512; gpt2: 1024]")
    p.add_argument("--tokens_per_step", type=int, metavar="N", help="[32768; gpt2: 262144]")
    p.add_argument("--batch_size", type=int, metavar="B", help=f"sequences at once [the step, up to {LARGEST_MICRO_BATCH} tokens]")
    p.add_argument("--branch_at", type=int, default=0, metavar="STEP", help="variants begin with the baseline's checkpoint of "
                   "this step; 0: with step 1")
    p.add_argument("--eval_freq", type=int, default=50, metavar="STEPS")
    p.add_argument("--eval_sequences", type=int, default=256, metavar="N")
    p.add_argument("--jobs", type=int, default=4, metavar="J", help="runs at a time [4]")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--out", type=Path, default=ROOT / "docs/data/loss_gap", help="takes the curves [docs/data/loss_gap]")
    p.add_argument("--work", type=Path, default=ROOT / "runs/loss_gap", help="checkpoints and logs of runs under way, fastest in "
                   "/dev/shm [runs/loss_gap]")
    p.add_argument("--checkpoint_freq", type=int, default=0, metavar="STEPS", help="for runs that may be killed; 0: at the end")
    p.add_argument("--picture", type=Path, metavar="SVG")
    p.add_argument("--dry_run", action="store_true", help="print the table of runs and stop")
    p.add_argument("--report", action="store_true", help="run nothing: what the curves there say")
    p.add_argument("--write_table", type=Path, metavar="CSV", help="all curves in one file, as those in docs/data")
    p.add_argument("--table", type=Path, action="append", metavar="CSV", help="run nothing: what the curves of such files say; "
                   "the last that has a curve counts")
    p.add_argument("--tokens_per_second", type=float, default=0, metavar="N", help="of one run alone, which runs at a time share: "
                   "for the estimate of time")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="start no run that would end later; stop what does")
    p.add_argument("--judge", choices=("prove", "refute"), default="prove", help="prove: fail unless the gap is shown to be within "
                   "the bar; refute: fail only where it is beyond by more than 2 standard errors")
    p.add_argument("--bar_mean", type=float, metavar="NATS", help="|mean gap| at most [0.005]")
    p.add_argument("--bar_error", type=float, metavar="NATS", help="standard error at most [0.003]")
    p.add_argument("--bar_bound", type=float, metavar="NATS", help="instead: |mean gap| + 2 standard errors at most [gpt2: 0.02]")
    return p


def read_plan(path):
    text = path.read_text()
    if path.suffix == ".json":
        plan = json.loads(text)
    else:
        import tomllib  # Python 3.11
        plan = tomllib.loads(text)
    for name in ("setting", "variant"):
        if name in plan:
            plan[name] = [f"{key}={flags}" for key, flags in plan[name].items()]
    return plan


def read_options(arguments, description=""):
    parser = make_parser(description)
    options = parser.parse_args(arguments)
    if options.plan:
        try:
            plan = read_plan(options.plan)
        except (OSError, ValueError, ImportError) as error:
            raise Failure(USAGE, f"{options.plan}: {error}") from error
        unknown = set(plan) - set(vars(options))
        if unknown:
            raise Failure(USAGE, f"{options.plan}: there is no option {', '.join(sorted(unknown))}")
        parser.set_defaults(**plan)
        options = parser.parse_args(arguments)

    preset = FULL if options.model.startswith("gpt2") else SMALL
    options.seq_len = options.seq_len or preset["seq_len"]
    options.tokens_per_step = options.tokens_per_step or preset["tokens_per_step"]
    sequences, remainder = divmod(options.tokens_per_step, options.seq_len)
    if remainder or not sequences:
        raise Failure(USAGE, f"--tokens_per_step {options.tokens_per_step} is no multiple of --seq_len {options.seq_len}")
    options.batch_size = options.batch_size or min(sequences, max(1, LARGEST_MICRO_BATCH // options.seq_len))
    rates = (options.rates or preset["rates"]).split(",")
    options.settings = [choice(text) for text in options.setting or [f"lr{rate}=--max_lr {rate}" for rate in rates]]
    if options.branch_at:
        if not 0 < options.branch_at < options.steps or options.branch_at % (options.checkpoint_freq or options.branch_at):
            raise Failure(USAGE, "--branch_at must be below --steps, and a step that --checkpoint_freq saves")
        for setting in options.settings:  # other curves than those of whole runs
            setting.name += f"-from{options.branch_at}"
    options.variants = [choice(text) for text in options.variant or ["fp8="]]
    options.baseline = choice(options.baseline or "bf16=--precision bf16")
    for choices in (options.settings, [options.baseline, *options.variants]):
        names = [c.name for c in choices]
        if len(set(names)) < len(names):
            raise Failure(USAGE, f"two of the same name: {', '.join(names)}")
    options.all_seeds = range(options.first_seed, options.first_seed + options.seeds)
    options.bars = preset["bars"]
    if options.bar_bound is not None:
        options.bars = Bars(bound=options.bar_bound)
    elif options.bar_mean is not None or options.bar_error is not None:
        options.bars = Bars(mean=0.005 if options.bar_mean is None else options.bar_mean,
                            error=0.003 if options.bar_error is None else options.bar_error)
    options.bars = replace(options.bars, proof=options.judge == "prove")
    options.program = options.program.resolve()
    options.curves = options.out / options.model
    options.work = (options.work / options.model).resolve()
    return options


# ---- data ----


def data_names(options):
    """Which data, whatever the folder it lies in."""
    if not options.train_data:
        return "built-in sample"
    return " ".join(Path(pattern).name for pattern in (options.train_data + "," + options.val_data).split(","))


def check_data(options):
    if bool(options.train_data) != bool(options.val_data):
        raise Failure(USAGE, "give --train_data and --val_data, or neither for the built-in sample")
    if not options.train_data:
        print("no --train_data: on the trainer's built-in sample, an easy grammar; real text is a harder test")
    for pattern in filter(None, (options.train_data + "," + options.val_data).split(",")):
        if not glob.glob(pattern):
            raise Failure(NOT_HERE, f"no data: nothing matches {pattern}")


# ---- runs ----


@dataclass
class Choice:
    """A setting or a variant: a name and flags of the trainer."""

    name: str
    flags: str

    def __post_init__(self):
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise Failure(USAGE, f"'{self.name}' is no name for a file: use letters, digits, . + - _")


def choice(text):
    """NAME=FLAGS"""
    name, equals, flags = text.partition("=")
    if not equals:
        raise Failure(USAGE, f"'{text}' is not of the form NAME=FLAGS")
    return Choice(name, flags)


def flags_by_name(*texts):
    """{option: its words}; a later flag replaces an earlier one, --no-x replaces --x."""
    flags = {}
    for word in shlex.split(" ".join(texts)):
        if word.startswith("--"):
            option = word[2:].split("=")[0].removeprefix("no-")
            flags[option] = [word]
        elif flags:
            flags[option].append(word)
        else:
            raise Failure(USAGE, f"'{word}' is no flag of the trainer")
    return flags


@dataclass(frozen=True)
class Run:
    setting: str
    variant: str
    seed: int
    flags: tuple  # of the trainer: all that bears on the numbers
    precision: str

    def __str__(self):
        return f"{self.setting} {self.variant} seed {self.seed}"

    def csv(self, out):
        return out / self.setting / f"{self.variant}-seed{self.seed}.csv"


def make_runs(options):
    """By seed, then by setting, the baseline first."""
    common = {"model": options.model, "seq_len": options.seq_len, "batch_size": options.batch_size,
              "target_batch_size": options.tokens_per_step // options.seq_len, "max_steps": options.steps,
              "warmup_steps": options.warmup_steps, "eval_freq": options.eval_freq, "eval_sequences": options.eval_sequences}
    shared = " ".join(f"--{name} {value}" for name, value in common.items())
    runs = []
    for seed in options.all_seeds:
        for setting in options.settings:
            for variant in (options.baseline, *options.variants):
                default = "" if variant is options.baseline else "--precision fp8"
                flags = flags_by_name(shared, options.flags, f"--seed {seed}", setting.flags, default, variant.flags)
                if "precision" not in flags:
                    raise Failure(USAGE, f"--baseline {variant.name} names no --precision")
                if variant is options.baseline:
                    of_baseline = set(flags)
                elif options.branch_at and (inherited := of_baseline - set(flags)):
                    raise Failure(USAGE, f"--branch_at: {variant.name} would go on with the baseline's --{min(inherited)}; name it in "
                                         "both, or in --flags")
                if options.branch_at and variant is not options.baseline and flags["precision"][-1].endswith("fp8"):
                    flags.setdefault("fp8_bf16_steps", ["--fp8_bf16_steps", "0"])  # FP8 begins where it branches off
                words = tuple(word for option in flags.values() for word in option)
                runs.append(Run(setting.name, variant.name, seed, words, flags["precision"][-1].split("=")[-1]))
    return runs
