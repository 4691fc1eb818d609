#!/usr/bin/env python3
"""Predicts scaling over GPUs: the model of docs/scaling.md, which shows its output.

Compute comes from tokens/s measured on one H200; everything else (links, latencies, overlap) is arithmetic on numbers that
options change. Nothing here was measured on more than one GPU.
"""
import argparse
import dataclasses
import math

PADDED_VOCAB = 50304
MICRO = 1e-6
GIGA = 1e9


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int
    channels: int
    tokens_per_s: dict  # by precision, one H200, steps of 524,288 tokens: docs/benchmarks.md
    micro_batch: int    # at which that was measured


SIZES = {
    "124M": Size(12, 768, {"fp8": 971370, "bf16": 659868}, 64),
    "355M": Size(24, 1024, {"fp8": 366414, "bf16": 246471}, 64),
    "774M": Size(36, 1280, {"fp8": 180754, "bf16": 116140}, 64),
    "1558M": Size(48, 1600, {"fp8": 91943, "bf16": 59282}, 32),
}
MEASURED_TOKENS = 524288


@dataclasses.dataclass(frozen=True)
class Plan:
    """Precision of compute and communication."""
    precision: str = "fp8"    # of compute: fp8, bf16
    zero: str = "all"         # sharding of the optimizer state: over all GPUs, within a node, or off
    weights: str = "e4m3"     # format of block weights in the all-gather: e4m3, bf16
    gradients: str = "fp32"   # fp32: ring; with zero "all" also bf16: all-to-all, bf16-nodes: in the node, then between
    split_embedding: bool = False  # reduce the LM head's part early, rows of the last micro-step's tokens late


PLANS = [
    ("FP8, ZeRO, E4M3 weights, FP32 gradients: the default", Plan()),
    ("... weights travel in BF16", Plan(weights="bf16")),
    ("... gradients travel in BF16, all-to-all", Plan(gradients="bf16")),
    ("... gradients travel in BF16, node by node (not built)", Plan(gradients="bf16-nodes")),
    ("... ZeRO in the node, all-reduce between nodes (not built)", Plan(zero="node")),
    ("... without ZeRO: all-reduce", Plan(zero="off")),
    ("BF16, ZeRO, BF16 weights, FP32 gradients", Plan(precision="bf16", weights="bf16")),
    ("... without ZeRO: all-reduce", Plan(precision="bf16", weights="bf16", zero="off")),
]


# ---- parameters ----

def block_matrices(size):
    return 12 * size.channels ** 2


def block_vectors(size):
    return 13 * size.channels


def embedding(size, options):
    return (PADDED_VOCAB + options.seq_len) * size.channels


def parameters(size, options):
    return size.layers * (block_matrices(size) + block_vectors(size)) + embedding(size, options) + 2 * size.channels


# ---- collectives: seconds for `size` bytes in all, the same on every rank ----

def nodes(gpus, options):
    return math.ceil(gpus / options.gpus_per_node)


def ring_latency(gpus, options):
    hops_between_nodes = nodes(gpus, options) - 1
    return (options.start_us + (gpus - 1 - hops_between_nodes) * options.nvlink_hop_us +
            hops_between_nodes * options.network_hop_us) * MICRO


def pass_round(size, gpus, options):
    """Every byte passes every GPU once: bound by a GPU's links or by all network cards of a node."""
    node_count, per_node = nodes(gpus, options), min(gpus, options.gpus_per_node)
    through_gpu = size * (gpus - 1) / gpus / (options.nvlink * options.nvlink_share * GIGA)
    through_node = size * (node_count - 1) / node_count / (per_node * options.network * options.network_share * GIGA)
    return max(through_gpu, through_node)


def ring(size, gpus, options):
    """Reduce-scatter or all-gather."""
    return 0 if gpus == 1 else ring_latency(gpus, options) + pass_round(size, gpus, options)


def all_reduce(size, gpus, options):
    """NCCL chooses ring or tree: a tree has fewer hops and the same bytes at the bottleneck."""
    if gpus == 1:
        return 0
    per_node = min(gpus, options.gpus_per_node)
    tree_hops = (per_node - 1) * options.nvlink_hop_us + math.ceil(math.log2(nodes(gpus, options))) * options.network_hop_us
    tree_latency = (options.start_us + 2 * tree_hops) * MICRO
    return min(2 * ring_latency(gpus, options), tree_latency) + 2 * pass_round(size, gpus, options)


def all_to_all(size, gpus, options):
    """Each GPU sends a part of `size` to every other, over one network card to other nodes."""
    if gpus == 1:
        return 0
    per_node = min(gpus, options.gpus_per_node)
    within = size * (per_node - 1) / gpus / (options.nvlink * options.nvlink_share * GIGA)
    between = size * (gpus - per_node) / gpus / (options.network * options.network_share * GIGA)
    return (options.start_us + (gpus - 1) * options.message_us) * MICRO + max(within, between)


def in_two_levels(within, between, size, gpus, options):
    """Hierarchical: first within the node, then each GPU with its peers of the same local rank."""
    per_node = min(gpus, options.gpus_per_node)
    one_gpu_a_node = dataclasses.replace(options, gpus_per_node=1)
    return within(size, per_node, options) + between(size / per_node, nodes(gpus, options), one_gpu_a_node)


def exchange(values, gpus, plan, options):
    """Sums the gradients of a bucket."""
    if plan.zero == "off":
        return all_reduce(4 * values, gpus, options)
    if plan.zero == "node":
        return in_two_levels(ring, all_reduce, 4 * values, gpus, options)
    if plan.gradients == "bf16":
        return all_to_all(2 * values, gpus, options)
    if plan.gradients == "bf16-nodes":
        return in_two_levels(all_to_all, all_to_all, 2 * values, gpus, options)
    return ring(4 * values, gpus, options)


def sharers(plan, gpus, options):
    """Number of GPUs that shard the optimizer state."""
    return {"all": gpus, "node": min(gpus, options.gpus_per_node), "off": 1}[plan.zero]


def gather(matrices, vectors, bytes_per_weight, gpus, options):
    """All-gather of a bucket's updated weights; vectors are FP32."""
    return ring(bytes_per_weight * matrices + 4 * vectors, gpus, options)


# ---- compute on one GPU ----

def fixed_seconds(size, precision, options):
    """Fixed cost of a micro-step: weight reads of both passes, FP32 gradient traffic, kernel launches."""
    weight_bytes = 2 if precision == "fp8" else 4
    kernels = size.layers * options.kernels_per_block
    return parameters(size, options) * (8 + weight_bytes) / (options.copy * GIGA) + kernels * options.kernel_us * MICRO


def update_seconds(size, plan, gpus, options):
    """AdamW and the norm move 34 bytes per parameter, sharded by ZeRO; every rank writes all FP8 weights and transposes."""
    owned = parameters(size, options) / sharers(plan, gpus, options)
    arrive_as_codes = plan.weights == "e4m3" and sharers(plan, gpus, options) > 1
    code_bytes = 0 if plan.precision == "bf16" else 2 if arrive_as_codes else 4
    return (34 * owned + code_bytes * size.layers * block_matrices(size)) / (options.copy * GIGA)


def micro_step_seconds(size, precision, micro_batch, options):
    """Scaled from the measured step: all but the fixed cost grows with the tokens."""
    measured = MEASURED_TOKENS / size.tokens_per_s[precision] - update_seconds(size, Plan(precision), 1, options)
    micro_steps = MEASURED_TOKENS / (1024 * size.micro_batch)
    fixed = fixed_seconds(size, precision, options)
    per_token = (measured - micro_steps * fixed) / MEASURED_TOKENS
    return fixed + per_token * micro_batch * options.seq_len


def head_share(size, options):
    """Shares of a micro-step's FLOPs: LM head, GEMMs of the blocks, attention."""
    head = PADDED_VOCAB * size.channels
    return head / (head + size.layers * (block_matrices(size) + options.seq_len * size.channels))


# ---- the step ----

@dataclasses.dataclass(frozen=True)
class Step:
    micro_batch: int
    compute: float          # seconds: all micro-steps
    update: float
    exposed_reduce: float   # after the last backward pass
    exposed_embedding: float  # ... of it the embedding's bucket
    exposed_gather: float   # forward passes wait for weights
    small: float            # all-reduces of sums and amaxes
    contention: float       # compute slowed by hidden communication
    tokens_per_s: float     # of all GPUs

    @property
    def seconds(self):
        return self.compute + self.update + self.exposed_reduce + self.exposed_gather + self.small + self.contention


def late_rows(tokens):
    """Distinct tokens among `tokens`: Heaps' law with the constants of English in GPT-2's BPE, roughly."""
    return min(PADDED_VOCAB, 2.5 * tokens ** 0.75)


def model_step(size, plan, gpus, options):
    sequences = math.ceil(options.sequences / gpus)
    micro_batch = min(size.micro_batch, sequences)
    micro_steps = math.ceil(sequences / micro_batch)
    micro = micro_step_seconds(size, plan.precision, micro_batch, options)
    head = head_share(size, options) * micro
    forward, backward = (micro - head) / 3 / size.layers, (micro - head) * 2 / 3 / size.layers  # of one block
    buckets = [min(options.blocks_per_bucket, size.layers - first)
               for first in range(0, size.layers, options.blocks_per_bucket)]  # blocks in each
    per_block = block_matrices(size) + block_vectors(size)

    # Last micro-step, backward: a bucket's reduction starts when it is complete and the previous one has ended.
    now = head * 2 / 3
    early = exchange(2 * size.channels, gpus, plan, options)
    if plan.split_embedding:
        early += exchange(PADDED_VOCAB * size.channels, gpus, plan, options)
    wire_free, on_wire = now + early, early
    for blocks in reversed(buckets):
        now += blocks * backward
        seconds = exchange(blocks * per_block, gpus, plan, options)
        wire_free, on_wire = max(now, wire_free) + seconds, on_wire + seconds
    if plan.split_embedding:
        rows = late_rows(micro_batch * options.seq_len)
        last = (all_to_all(4 * rows * size.channels, gpus, options) +
                exchange(options.seq_len * size.channels, gpus, plan, options))
    else:
        last = exchange(embedding(size, options), gpus, plan, options)
    exposed_reduce = max(now, wire_free) - now + last
    hidden = on_wire - (exposed_reduce - last)

    # First micro-step, forward: gathers the embedding first, then block by block.
    exposed_gather = 0.0
    group = sharers(plan, gpus, options)
    if group > 1:
        arrived = on_wire = now = exposed_gather = gather(embedding(size, options), 0, 2, group, options)
        for blocks in buckets:
            seconds = gather(blocks * block_matrices(size), blocks * block_vectors(size),
                             1 if plan.weights == "e4m3" else 2, group, options)
            arrived, on_wire = arrived + seconds, on_wire + seconds
            exposed_gather += max(0.0, arrived - now)
            now = max(now, arrived) + blocks * forward
        hidden += on_wire - exposed_gather

    small = all_reduce(64, gpus, options) * (2 if plan.precision == "fp8" else 1)
    step = Step(micro_batch, micro_steps * micro, update_seconds(size, plan, gpus, options), exposed_reduce, last,
                exposed_gather, small, hidden * options.overlap_cost, 0)
    return dataclasses.replace(step, tokens_per_s=options.sequences * options.seq_len / step.seconds)


def efficiency(size, plan, gpus, options):
    """Speed relative to linear scaling from one GPU with the same global batch."""
    alone = model_step(size, plan, 1, options).tokens_per_s
    return model_step(size, plan, gpus, options).tokens_per_s / (gpus * alone)


# ---- tables ----

def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def milliseconds(seconds):
    return f"{seconds * 1000:.2f}"


def percent(share):
    return f"{100 * share:.0f}%"


def print_efficiencies(options):
    print(f"### Efficiency, {options.sequences} sequences of {options.seq_len} tokens a step\n")
    rows = []
    for name, plan in PLANS:
        rows.append([name] + [percent(efficiency(options.sizes[size], plan, gpus, options))
                              for size in options.models for gpus in options.gpus])
    table([""] + [f"{size} x {gpus}" for size in options.models for gpus in options.gpus], rows)


def print_steps(options):
    print("### The default step, ms\n")
    rows = []
    for name in options.models:
        for gpus in [1] + options.gpus:
            step = model_step(options.sizes[name], Plan(), gpus, options)
            rows.append([name, str(gpus), str(step.micro_batch), milliseconds(step.compute), milliseconds(step.update),
                         milliseconds(step.exposed_reduce), milliseconds(step.exposed_embedding),
                         milliseconds(step.exposed_gather), milliseconds(step.small), milliseconds(step.contention),
                         milliseconds(step.seconds), f"{step.tokens_per_s / 1e6:.2f}M"])
    table(["model", "GPUs", "micro-batch", "compute", "update", "reduce, exposed", "of it embedding", "gather, exposed",
           "small", "contention", "step", "tokens/s"], rows)


def tokens_that_hide(size, communication, share, precision, options):
    """Fewest tokens of a micro-step at which a block's pass (a share of its time) hides its communication."""
    def block_seconds(micro_batch):
        micro = micro_step_seconds(size, precision, micro_batch, options)
        return (1 - head_share(size, options)) * micro * share / size.layers
    at_zero = block_seconds(0)
    per_sequence = block_seconds(1) - at_zero
    return max(0.0, (communication - at_zero) / per_sequence * options.seq_len)


def sequences_for(size, plan, gpus, goal, options):
    """Fewest sequences per GPU and step that reach efficiency `goal`; None: unreachable."""
    alone = model_step(size, plan, 1, options).tokens_per_s
    for sequences in range(1, 4097):
        grown = dataclasses.replace(options, sequences=sequences * gpus)
        if model_step(size, plan, gpus, grown).tokens_per_s >= goal * gpus * alone:
            return sequences
    return None


def cases(options):
    """Every size on every number of GPUs: (name, size, gpus)."""
    return [(name, options.sizes[name], gpus) for name in options.models for gpus in options.gpus]


def print_overlap(options):
    print("### Where overlap ends: tokens per GPU\n")
    rows = []
    for name, size, gpus in cases(options):
        reduce = exchange(block_matrices(size) + block_vectors(size), gpus, Plan(), options)
        weights = gather(block_matrices(size), block_vectors(size), 1, gpus, options)
        needed = sequences_for(size, Plan(), gpus, 0.9, options)
        rows.append([name, str(gpus), milliseconds(reduce),
                     f"{tokens_that_hide(size, reduce, 2 / 3, 'fp8', options):,.0f}", milliseconds(weights),
                     f"{tokens_that_hide(size, weights, 1 / 3, 'fp8', options):,.0f}",
                     f"{options.sequences * options.seq_len / gpus:,.0f}",
                     f"{needed * options.seq_len:,}" if needed else "-"])
    table(["model", "GPUs", "reduce a block, ms", "hidden from", "gather a block, ms", "hidden from", "tokens a step",
           "90% from"], rows)


def print_embedding(options):
    print("### The tied embedding's bucket\n")
    rows = []
    for name, size, gpus in cases(options):
        whole = model_step(size, Plan(), gpus, options)
        split = model_step(size, Plan(split_embedding=True), gpus, options)
        rows.append([name, str(gpus), milliseconds(whole.exposed_embedding),
                     f"{100 * whole.exposed_embedding / whole.seconds:.1f}%",
                     milliseconds(gather(embedding(size, options), 0, 2, gpus, options)),
                     milliseconds(split.exposed_embedding), milliseconds(whole.seconds - split.seconds),
                     f"{100 * (whole.seconds / split.seconds - 1):+.1f}%"])
    table(["model", "GPUs", "reduce, exposed ms", "of the step", "gather, exposed ms", "late part if split, ms",
           "split saves, ms", "speed"], rows)


# ---- options ----

def whole_numbers(text):
    return [int(word) for word in text.split(",")]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", default=",".join(SIZES), type=lambda text: text.split(","), help="default: all four")
    add("--gpus", default=[8, 64, 512], type=whole_numbers, help="numbers of GPUs, default 8,64,512")
    add("--sequences", default=512, type=int, help="a step, over all GPUs (512)")
    add("--seq_len", default=1024, type=int, help="tokens of a sequence (1024)")
    add("--tokens_per_s", action="append", default=[], metavar="MODEL:PRECISION=N",
        help="replaces a measured speed of one GPU, as in 124M:fp8=900000; repeatable")
    add("--micro_batch", action="append", default=[], metavar="MODEL=N", help="and its micro-batch, as in 1558M=64")
    add("--blocks_per_bucket", default=1, type=int, help="blocks that travel together (1)")
    add("--gpus_per_node", default=8, type=int, help="(8)")
    add("--nvlink", default=450, type=float, help="GB/s of a GPU and direction (450: NVLink 4)")
    add("--network", default=50, type=float, help="GB/s of a GPU and direction between nodes (50: 400 Gb/s)")
    add("--nvlink_share", default=0.8, type=float, help="of that bandwidth that a collective reaches (0.8)")
    add("--network_share", default=0.9, type=float, help="the same between nodes (0.9)")
    add("--start_us", default=10, type=float, help="microseconds to begin a collective (10)")
    add("--nvlink_hop_us", default=1.9, type=float, help="per hop in a node (1.9)")
    add("--network_hop_us", default=4, type=float, help="per hop between nodes (4)")
    add("--message_us", default=0.5, type=float, help="per peer of an all-to-all (0.5)")
    add("--overlap_cost", default=0.1, type=float,
        help="how much slower compute is beside a collective, which takes multiprocessors and memory bandwidth (0.1)")
    add("--copy", default=4200, type=float, help="GB/s of device memory (4200, measured)")
    add("--kernels_per_block", default=25, type=int, help="of a micro-step (25)")
    add("--kernel_us", default=2, type=float, help="microseconds that a kernel costs however small its work is (2)")
    given = parser.parse_args(arguments)

    sizes = dict(SIZES)
    for text in given.tokens_per_s:
        name, precision, speed = text.replace("=", ":").split(":")
        sizes[name] = dataclasses.replace(sizes[name], tokens_per_s={**sizes[name].tokens_per_s, precision: float(speed)})
    for text in given.micro_batch:
        name, number = text.split("=")
        sizes[name] = dataclasses.replace(sizes[name], micro_batch=int(number))
    unknown = set(given.models) - set(sizes)
    if unknown:
        parser.error(f"no model {unknown.pop()}: there are {', '.join(sizes)}")
    fields = {**vars(given), "sizes": sizes}
    return dataclasses.make_dataclass("Options", fields, frozen=True)(**fields)


def main():
    options = parse()
    print_efficiencies(options)
    print_steps(options)
    print_overlap(options)
    print_embedding(options)


if __name__ == "__main__":
    main()
