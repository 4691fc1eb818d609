#!/usr/bin/env python3
"""tools/scaling_model.py: what must hold for any numbers, and one case by hand."""
import dataclasses
import os
import subprocess
import sys
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools")
sys.path.insert(0, TOOLS)
sys.dont_write_bytecode = True
import scaling_model as model  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, os.path.join(TOOLS, "scaling_model.py"), *arguments], capture_output=True,
                          text=True, timeout=120)


class ScalingModel(unittest.TestCase):
    def setUp(self):
        self.options = model.parse([])

    def test_parameters_are_gpt2s(self):
        # Hugging Face counts 124,439,808; our vocabulary has 47 rows of padding.
        self.assertEqual(model.parameters(model.SIZES["124M"], self.options), 124439808 + 47 * 768)
        self.assertEqual(model.parameters(model.SIZES["1558M"], self.options), 1557611200 + 47 * 1600)

    def test_one_gpu_is_what_was_measured(self):
        for size in model.SIZES.values():
            for precision, weights in (("fp8", "e4m3"), ("bf16", "bf16")):
                plan = model.Plan(precision=precision, weights=weights)
                step = model.model_step(size, plan, 1, self.options)
                self.assertAlmostEqual(step.tokens_per_s / size.tokens_per_s[precision], 1, places=9)
                self.assertEqual(step.exposed_reduce + step.exposed_gather + step.small + step.contention, 0)
                self.assertEqual(model.efficiency(size, plan, 1, self.options), 1)

    def test_efficiency_falls_with_gpus(self):
        for size in model.SIZES.values():
            for _, plan in model.PLANS:
                course = [model.efficiency(size, plan, gpus, self.options) for gpus in (1, 2, 8, 16, 64, 256, 512)]
                self.assertEqual(course, sorted(course, reverse=True))
                self.assertGreater(course[-1], 0)

    def test_larger_batches_and_faster_links_help(self):
        size = model.SIZES["355M"]
        now = model.efficiency(size, model.Plan(), 64, self.options)
        for better in ({"sequences": 4096}, {"nvlink": 900, "network": 100}, {"network_hop_us": 1}, {"overlap_cost": 0}):
            options = dataclasses.replace(self.options, **better)
            self.assertGreater(model.efficiency(size, model.Plan(), 64, options), now, better)

    def test_collectives_by_hand(self):
        # 1 GB over 8 GPUs of a node at 360 GB/s: 7/8 of it passes each GPU; 7 hops.
        self.assertAlmostEqual(model.ring(1e9, 8, self.options), 0.875 / 360 + (10 + 7 * 1.9) * 1e-6, places=12)
        # Over 8 nodes: 7/8 of it passes the 8 cards of a node, 45 GB/s each; 7 of 63 hops are between nodes.
        self.assertAlmostEqual(model.ring(1e9, 64, self.options), 63 / 64 / 360 + (10 + 56 * 1.9 + 7 * 4) * 1e-6, places=12)
        slow = dataclasses.replace(self.options, network=25)
        self.assertAlmostEqual(model.ring(1e9, 64, slow), 0.875 / 180 + (10 + 56 * 1.9 + 7 * 4) * 1e-6, places=12)
        # Each GPU sends 56/64 of it through its own card.
        self.assertAlmostEqual(model.all_to_all(1e9, 64, self.options), 0.875 / 45 + (10 + 63 * 0.5) * 1e-6, places=12)
        # A tree up and down: 7 hops in the node, 3 between 8 nodes; twice the bytes.
        self.assertAlmostEqual(model.all_reduce(1e9, 64, self.options),
                               2 * 63 / 64 / 360 + (10 + 2 * (7 * 1.9 + 3 * 4)) * 1e-6, places=12)

    def test_bytes_of_a_bucket_by_hand(self):
        # A block of 124M: 12 x 768^2 weights and 13 x 768 in vectors. Without latencies and at 1 GB/s, seconds are GB.
        options = dataclasses.replace(self.options, start_us=0, nvlink_hop_us=0, message_us=0, nvlink=1, nvlink_share=1)
        size, values = model.SIZES["124M"], 7077888 + 9984
        self.assertEqual(model.block_matrices(size) + model.block_vectors(size), values)
        for plan, gigabytes in ((model.Plan(), 4e-9 * values * 7 / 8),
                                (model.Plan(gradients="bf16"), 2e-9 * values * 7 / 8),
                                (model.Plan(zero="node"), 4e-9 * values * 7 / 8),
                                (model.Plan(zero="off"), 8e-9 * values * 7 / 8)):
            self.assertAlmostEqual(model.exchange(values, 8, plan, options), gigabytes, places=12)
        for bytes_per_weight in (1, 2):
            self.assertAlmostEqual(model.gather(7077888, 9984, bytes_per_weight, 8, options),
                                   (bytes_per_weight * 7077888 + 4 * 9984) * 7 / 8 * 1e-9, places=12)

    def test_the_documents_show_what_it_prints(self):
        """All of it in docs/notes/scaling.md; docs/scaling.md has the table of efficiency and some rows of steps."""
        printed, documents = run().stdout, os.path.join(os.path.dirname(TOOLS), "docs")
        with open(os.path.join(documents, "notes", "scaling.md")) as file:
            self.assertIn(printed, file.read(), "docs/notes/scaling.md has other tables than tools/scaling_model.py")
        with open(os.path.join(documents, "scaling.md")) as file:
            page = file.read()
        efficiency, steps = printed.split("### ")[1:3]
        self.assertIn(efficiency.split("\n", 2)[2].strip(), page)
        shown = 0
        for line in filter(lambda line: line.startswith("| "), steps.splitlines()):
            model_name, gpus, _, *times = [cell.strip() for cell in line.strip("|").split("|")]
            row = " | ".join([model_name, gpus, *times[:3], *times[4:]])  # without the micro-batch and the embedding's share
            shown += f"| {row} |" in page
        self.assertEqual(shown, 1 + 2 * 3, "the head, and 1, 8 and 64 GPUs for two sizes")

    def test_it_prints_what_it_is_asked_for(self):
        text = run("--models", "124M", "--gpus", "4", "--tokens_per_s", "124M:fp8=1000000").stdout
        self.assertIn("| 124M x 4 |", text)
        self.assertIn("| 1.00M |", text)
        self.assertIn("--network", run("--help").stdout)
        done = run("--models", "125M")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no model 125M", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
