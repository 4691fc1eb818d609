#!/usr/bin/env python3
"""Every file of configs/: known options, numbers that agree with each other and with the speed model.

    tests/test_configs.py TRAINER

Their commands are run by e2e/test_documents.py."""
import glob
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRAINER = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
import scaling_model as model  # noqa: E402

CONFIGS = {os.path.basename(path)[:-5]: path for path in sorted(glob.glob(os.path.join(ROOT, "configs", "*.toml")))}
SIZES = {"gpt2": "124M", "gpt2-medium": "355M", "gpt2-large": "774M", "gpt2-xl": "1558M"}
TIME = re.compile(r"# Time: ([\d.]+) h on one H200, ([\d.]+) h on eight")
TINY = ["--device", "cpu", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8", "--batch_size", "2",
        "--target_batch_size", "2", "--eval_sequences", "4", "--sample_tokens", "0", "--no-use_tensorboard", "--threads", "1"]
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")


def text_of(name):
    with open(CONFIGS[name]) as file:
        return file.read()


def options_of(name):
    return tomllib.loads(text_of(name))


def run(*arguments, folder=ROOT):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    environment.update(CUDA_VISIBLE_DEVICES="", ASAN_OPTIONS="detect_leaks=0")
    return subprocess.run([TRAINER, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def printed(*arguments):
    done = run(*arguments, "--print_config")
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout


class Configs(unittest.TestCase):
    def test_the_program_takes_every_option_as_it_stands(self):
        for name, path in CONFIGS.items():
            with self.subTest(name):
                taken = tomllib.loads(printed("--config", path))
                for key, value in options_of(name).items():
                    self.assertEqual(taken[key], value, key)

    def test_one_step_count_for_ten_billion_tokens(self):
        default = int(re.search(r'(?m)^max_steps = "auto" # (\d+) for gpt2', printed("--model", "gpt2")).group(1))
        named = [name for name in CONFIGS if "10B tokens: 19" in text_of(name) or "10B tokens, 19" in text_of(name)]
        self.assertEqual(named, ["gpt2_124m", "gpt2_355m", "gpt2_774m"])
        for name in named:
            options = options_of(name)
            self.assertEqual(options["max_steps"], default)
            self.assertIn(f"{default:,} steps of 512 x 1024", text_of(name))
            self.assertLess(abs(options["max_steps"] * options["target_batch_size"] * options["seq_len"] - 10e9), 524288)

    def test_hours_are_the_speed_models(self):
        timed = [name for name in CONFIGS if TIME.search(text_of(name))]
        large = [name for name in CONFIGS if options_of(name).get("dataset", "").startswith(("fineweb", "openweb"))]
        self.assertEqual(timed, large)
        for name in timed:
            options = options_of(name)
            precision = options.get("precision", "fp8")
            plan = model.Plan(precision=precision, weights="e4m3" if precision == "fp8" else "bf16")
            given = model.parse(["--sequences", str(options["target_batch_size"])])
            size = model.SIZES[SIZES[options["model"]]]
            for gpus, said in zip((1, 8), TIME.search(text_of(name)).groups()):
                seconds = model.model_step(size, plan, gpus, given).seconds
                if options.get("optimizer") == "muon":  # FLOPs of Newton-Schulz at the measured 3.6 ms per 1.63 TFLOP
                    seconds += 300 * size.layers * size.channels ** 3 / 450e12 / gpus
                hours = options["max_steps"] * seconds / 3600
                self.assertAlmostEqual(float(said) / hours, 1, delta=0.03, msg=f"{name}, {gpus} GPUs: {hours:.2f} h")

    def test_the_pair_differs_in_precision_alone(self):
        fp8, bf16 = options_of("fineweb_edu_fp8"), options_of("fineweb_edu_bf16")
        self.assertEqual({key for key in fp8.keys() | bf16.keys() if fp8.get(key) != bf16.get(key)}, {"precision", "run_name"})

    def test_fine_tuning_starts_from_weights(self):
        """Those of a checkpoint here, where OpenAI's are not."""
        with tempfile.TemporaryDirectory(prefix="test_configs_") as folder:
            self.assertEqual(run(*TINY, "--max_steps", "1", "--run_name", "base", folder=folder).returncode, 0)
            done = run("--config", CONFIGS["finetune_gpt2"], *TINY, "--dataset=", "--prompt=", "--init_from", "base",
                       "--num_epochs=auto", "--max_steps", "2", folder=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("step    2 ", done.stdout)

    def test_the_readme_names_them_all(self):
        with open(os.path.join(ROOT, "configs", "README.md")) as file:
            readme = file.read()
        for name in CONFIGS:
            self.assertTrue(f"`{name}`" in readme, name)


if __name__ == "__main__":
    unittest.main(verbosity=1)
