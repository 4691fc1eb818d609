#!/usr/bin/env python3
"""FP8 by hand: the worked examples of docs/tutorial.md, in plain Python.

    tools/fp8_by_hand.py round VALUE...       the nearest FP8 values, their bits and their errors
    tools/fp8_by_hand.py scale AMAX...        delayed scaling: one line per step
    tools/fp8_by_hand.py accumulate           a long sum in the tensor cores' accumulator, with and without promotion
    tools/fp8_by_hand.py dlogits              a sum of many logit gradients, rounded to nearest and stochastically

Each command takes --help. Nothing here is fast; engine/base/float_formats.h and kernels/ have the real code.
"""
import argparse
import bisect
import dataclasses
import functools
import math
import random
import sys


@dataclasses.dataclass(frozen=True)
class Format:
    name: str
    mantissa_bits: int
    bias: int
    largest_byte: int  # of the largest finite value; the bytes above are infinity (E5M2) and NaN

    def decode(self, byte):
        """The definition: (-1)^s 2^(e - bias) (1 + m / 2^M), and for e = 0 the subnormals (-1)^s 2^(1 - bias) m / 2^M."""
        sign = -1.0 if byte & 0x80 else 1.0
        exponent, mantissa = (byte & 0x7F) >> self.mantissa_bits, byte & ((1 << self.mantissa_bits) - 1)
        fraction = mantissa / 2**self.mantissa_bits
        return sign * (2.0 ** (1 - self.bias) * fraction if exponent == 0 else 2.0 ** (exponent - self.bias) * (1 + fraction))

    @functools.cache
    def values(self):
        return [self.decode(byte) for byte in range(self.largest_byte + 1)]  # rising, as the bytes do

    @property
    def max(self):
        return self.decode(self.largest_byte)

    def encode(self, value):
        """Round to nearest, ties to the even byte; beyond the largest value: saturate."""
        sign, magnitude, values = (0x80 if math.copysign(1, value) < 0 else 0), abs(value), self.values()
        above = min(bisect.bisect_left(values, magnitude), self.largest_byte)
        below = max(above - 1, 0)
        distances = (magnitude - values[below], values[above] - magnitude)
        if distances[0] == distances[1]:
            return sign | (below if below % 2 == 0 else above)
        return sign | (below if distances[0] < distances[1] else above)

    def round(self, value):
        return self.decode(self.encode(value))

    def bits(self, byte):
        digits = f"{byte:08b}"
        return f"{digits[0]} {digits[1:8 - self.mantissa_bits]} {digits[8 - self.mantissa_bits:]}"


E4M3 = Format("E4M3", 3, 7, 0x7E)
E5M2 = Format("E5M2", 2, 15, 0x7B)
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}


# ---- round ----

def show_rounding(options):
    print("      value  format  bits        rounded      relative error")
    for value in options.values:
        for kind in FORMATS.values():
            byte = kind.encode(value * options.scale)
            rounded = kind.decode(byte) / options.scale
            error = f"{rounded / value - 1:+.2%}" if value else "0"
            print(f"{value:11.6g}  {kind.name}    {kind.bits(byte)}  {rounded:<11.6g}  {error}")


# ---- delayed scaling: fp8_delayed_scale() of kernels/fp8_scale.h ----

def delayed_scale(history, kind, margin):
    return kind.max * 2.0**-margin / max(history)


def show_scaling(options):
    kind = FORMATS[options.format]
    history = options.amaxes[:1]  # the calibration micro-batch measured the first one
    print("step     amax    scale  amax * scale")
    for step, amax in enumerate(options.amaxes, 1):
        scale = delayed_scale(history[-options.history:], kind, options.margin)
        reached = amax * scale
        verdict = f"saturates: {reached / kind.max:.2f} of the range" if reached > kind.max else "fits"
        print(f"{step:4} {amax:8.4g} {scale:8.4g} {reached:9.4g}     {verdict}")
        history.append(amax)  # known at the end of the step: used from the next step


# ---- accumulation ----

K_OF_AN_INSTRUCTION = 32  # one FP8 wgmma adds 32 addends to the accumulator


def add_truncated(accumulator, addends, bits):
    """Align all addends to the largest, drop what falls below its `bits` bits, add."""
    largest = max(abs(accumulator), *map(abs, addends))
    quantum = 2.0 ** (math.frexp(largest)[1] - bits)
    return quantum * (int(accumulator / quantum) + sum([int(addend / quantum) for addend in addends]))


def accumulate(addends, bits, promote_every):
    total, accumulator = 0.0, 0.0
    for first in range(0, len(addends), K_OF_AN_INSTRUCTION):
        accumulator = add_truncated(accumulator, addends[first:first + K_OF_AN_INSTRUCTION], bits)
        if promote_every and (first + K_OF_AN_INSTRUCTION) % promote_every == 0:
            total, accumulator = total + accumulator, 0.0  # FP32 in the kernel
    return total + accumulator


def random_addends(generator, correlation, count=8192):
    """Activations in E4M3 times gradients in E5M2: normally distributed, and correlated a little."""
    addends = []
    for _ in range(count):
        activation, noise = generator.gauss(0, 1), generator.gauss(0, 1)
        gradient = correlation * activation + math.sqrt(1 - correlation**2) * noise
        addends.append(E4M3.round(64 * activation) / 64 * E5M2.round(64 * gradient) / 64)
    return addends


def show_accumulation(options):
    generator = random.Random(1)
    population = random_addends(generator, options.correlation)
    print(f"{options.sums} sums, accumulator of {options.bits} bits, correlation {options.correlation}")
    print("      K   not promoted   promoted every 128")
    for K in options.k:
        exact = fast = promoted = 0
        for _ in range(options.sums):
            addends = generator.choices(population, k=K)
            exact += math.fsum(addends)
            fast += accumulate(addends, options.bits, 0)
            promoted += accumulate(addends, options.bits, 128)
        print(f"{K:7,} {fast / exact - 1:+13.2%} {promoted / exact - 1:+19.2%}")


# ---- stochastic rounding: kernels/stochastic_rounding.h ----

DLOGITS_SCALE = 16384.0


def round_up_or_down(scaled, random_byte):
    """An IEEE half is E5M2 with 8 more bits: add a random byte to them, then drop them."""
    half = math.floor(scaled / half_step(scaled) + 0.5) * half_step(scaled)
    step = 256 * half_step(scaled)
    return math.floor(half / step + random_byte / 256) * step


def half_step(value):
    return 2.0 ** (max(math.frexp(value)[1] - 1, -14) - 10)


def show_dlogits(options):
    generator, spread = random.Random(1), min(options.probability, 1 - options.probability) / 2
    exact, nearest, stochastic = [], [], []
    for _ in range(options.tokens):
        gradient = options.probability + generator.uniform(-spread, spread) - 1  # softmax - onehot, at the target
        scaled = -gradient * DLOGITS_SCALE
        exact.append(gradient)
        nearest.append(-E5M2.round(scaled) / DLOGITS_SCALE)
        stochastic.append(-round_up_or_down(scaled, generator.randrange(256)) / DLOGITS_SCALE)
    print(f"mean of {options.tokens:,} gradients p - 1 of a target, p near {options.probability}")
    for name, values in (("exact", exact), ("to nearest", nearest), ("stochastic", stochastic)):
        print(f"{name:11} {math.fsum(values) / options.tokens:+.4f}")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("round", help="the nearest FP8 values")
    command.add_argument("values", nargs="+", type=float, metavar="VALUE")
    command.add_argument("--scale", type=float, default=1, help="multiply by this before rounding, divide after it")
    command.set_defaults(run=show_rounding)
    command = commands.add_parser("scale", help="delayed scaling, step by step")
    command.add_argument("amaxes", nargs="+", type=float, metavar="AMAX", help="largest magnitude of the tensor, by step")
    command.add_argument("--format", choices=FORMATS, default="e4m3")
    command.add_argument("--margin", type=int, default=1)
    command.add_argument("--history", type=int, default=16, help="steps remembered")
    command.set_defaults(run=show_scaling)
    command = commands.add_parser("accumulate", help="long sums")
    command.add_argument("-k", nargs="+", type=int, default=[768, 6144, 65536], help="addends of a sum, multiples of 128")
    command.add_argument("--bits", type=int, default=14, help="that the accumulator keeps")
    command.add_argument("--correlation", type=float, default=0.1, help="of activation and gradient")
    command.add_argument("--sums", type=int, default=8)
    command.set_defaults(run=show_accumulation)
    command = commands.add_parser("dlogits", help="gradients of logits")
    command.add_argument("--probability", type=float, default=0.04, help="of the target")
    command.add_argument("--tokens", type=int, default=20000)
    command.set_defaults(run=show_dlogits)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse(sys.argv[1:])
    options.run(options)
