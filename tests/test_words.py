#!/usr/bin/env python3
"""No private words in the folders below: tests/words.txt lists them as regular expressions, with the field's words and
exceptions. And kernels/sm90 uses the words of CUTLASS, FlashAttention-3 and DeepGEMM.
"""
import os
import re
import tempfile
import unittest

FOLDERS = ("kernels", "engine", "tools", "docs", "train_gpt2_fp8.cu", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md",
           "configs/README.md")
JOURNAL = os.path.join("docs", "notes")  # keeps the words of its day
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RULES = os.path.join(ROOT, "tests", "words.txt")
ENDINGS = (".h", ".cuh", ".cpp", ".cu", ".py", ".sh", ".md", ".cmake")
FIELD_WORDS = ("TMA", "mbarrier", "wgmma", "producer", "consumer", "warpgroup", "ping-pong", "pipeline", "k-block", "epilogue",
               "persistent", "tile scheduler", "GEMM", "warp-specialized")


class Rule:
    def __init__(self, pattern, words, places):
        self.pattern = re.compile(pattern, re.IGNORECASE)
        self.words = words
        self.places = places  # paths begin with one of these; empty: everywhere
        self.exceptions = []

    def offences(self, line):
        """Matches in a line that no exception covers."""
        allowed = [match.span() for exception in self.exceptions for match in exception.finditer(line)]
        for match in self.pattern.finditer(line):
            if not any(begin <= match.start() and match.end() <= end for begin, end in allowed):
                yield match[0]


def read_rules(path):
    rules, places = [], ()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("in "):
                places = tuple(text.removeprefix("in ").split())
                continue
            if text.startswith("except "):
                if not rules:
                    raise ValueError(f"{path}:{number}: an exception before the first rule")
                rules[-1].exceptions.append(re.compile(text.removeprefix("except "), re.IGNORECASE))
                continue
            pattern, arrow, words = text.partition(" -> ")
            if not arrow:
                raise ValueError(f"{path}:{number}: not of the form PATTERN -> WORDS")
            rules.append(Rule(pattern, words, places))
    return rules


def files_in(root, folders):
    for folder in folders:
        if os.path.isfile(os.path.join(root, folder)):
            yield folder
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(where, name), root)
                if name.endswith(ENDINGS) and not path.startswith(JOURNAL + os.sep):
                    yield path


def find_offences(root, folders, rules):
    offences = []
    for path in files_in(root, folders):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        suspects = [rule for rule in rules if path.startswith(rule.places or "") and rule.pattern.search(text)]
        for number, line in enumerate(text.splitlines() if suspects else [], 1):
            for rule in suspects:
                offences += [f'{path}:{number}: "{word}": say {rule.words}' for word in rule.offences(line)]
    return offences


class Tree(unittest.TestCase):
    def test_no_private_words(self):
        offences = find_offences(ROOT, FOLDERS, read_rules(RULES))
        self.assertEqual(offences, [], "\n" + "\n".join(offences))

    def test_every_folder_has_files(self):
        for folder in FOLDERS:
            self.assertGreaterEqual(len(list(files_in(ROOT, [folder]))), 1 if "." in folder else 15, folder)

    def test_hopper_kernels_use_the_fields_words(self):
        text = ""
        for path in files_in(ROOT, ["kernels/sm90"]):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text += file.read().lower()
        self.assertEqual([word for word in FIELD_WORDS if word.lower() not in text], [])


class ItsOwnRules(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="test_words_")
        self.addCleanup(temporary.cleanup)
        self.root = temporary.name

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def offences(self, rules, line):
        self.write("kernels/a.cu", line + "\n")
        return find_offences(self.root, ["kernels"], read_rules(self.write("words.txt", rules)))

    def test_a_private_word_is_found_with_its_place_and_the_fields_word(self):
        self.assertEqual(self.offences("\\bpieces?\\b -> k-block\n", "// Pieces of K"),
                         ['kernels/a.cu:1: "Pieces": say k-block'])

    def test_an_exception_covers_its_own_match_alone(self):
        rules = "\\bcodes?\\b -> FP8 values\n  except exit codes?\n"
        self.assertEqual(self.offences(rules, "// exit codes"), [])
        self.assertEqual(len(self.offences(rules, "// codes beside exit codes")), 1)

    def test_a_rule_may_hold_in_some_folders_alone(self):
        self.assertEqual(self.offences("in engine/cuda\n\\bbar\\b -> threshold\n", "the bar"), [])
        self.assertEqual(len(self.offences("in engine/cuda kernels\n\\bbar\\b -> threshold\n", "the bar")), 1)

    def test_pages_are_read_and_the_journal_is_not(self):
        for path in ("docs/a.md", "docs/notes/a.md", "README.md"):
            self.write(path, "A colour.\n")
        rules = read_rules(self.write("words.txt", "in docs README.md\ncolour -> color\n"))
        self.assertEqual(find_offences(self.root, ["docs", "README.md"], rules),
                         ['docs/a.md:1: "colour": say color', 'README.md:1: "colour": say color'])

    def test_part_of_a_name_is_no_word(self):
        self.assertEqual(self.offences("\\bbar\\b -> threshold\n", "int barrier;"), [])

    def test_a_malformed_list_is_refused(self):
        for rules in ("\\bpiece\\b\n", "except piece\n"):
            with self.assertRaises(ValueError):
                self.offences(rules, "")

    def test_the_list_finds_what_it_was_written_for(self):
        rules = read_rules(RULES)
        for line in ("a launch by clusters of so many blocks", "the product's epilogue", "a matrix product", "matmul_forward(cuda)",
                     "a ring of eight stages", "the one thread that copies", "codes both ways round", "rows by teams", "what is told",
                     "a kernel of ours", "stands in shared memory", "what goes on"):
            self.assertTrue(any(list(rule.offences(line)) for rule in rules), line)
        for line in ("bar.sync 1, 128;", "cudaMemcpyAsync(to, from)", "an exit code", "cublasLtMatmulDesc_t", "a ring buffer",
                     "the weight-stationary GEMM"):
            self.assertFalse(any(list(rule.offences(line)) for rule in rules if "docs" not in rule.places), line)


if __name__ == "__main__":
    unittest.main()
