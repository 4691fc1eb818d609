#!/usr/bin/env python3
"""JSON comes in through engine/base/json_reader.h, which bounds its size and depth, and no other way: no other source calls
a parser of nlohmann's library (parse, accept, sax_parse, the binary formats, operator>>, the literals)."""
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READER = "engine/base/json_reader.h"
ENDINGS = (".h", ".cuh", ".cpp", ".cu")
ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*(?:typename\s+)?(?:nlohmann::)?(?:basic_json|json|ordered_json|OrderedJson)\b")
NAMES = {"json", "ordered_json", "basic_json", "OrderedJson", "Json"}
PARSERS = r"(?:parse|accept|sax_parse|from_cbor|from_msgpack|from_ubjson|from_bson|from_bjdata)"


def without_comments(text):
    """Comments go, strings stay: what is in quotes is not taken for a comment."""
    part = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return part.sub(lambda found: found.group(0) if found.group(0).startswith('"') else " ", text)


def other_ways_in(text):
    """The calls of a parser in a source."""
    code = without_comments(text)
    names = NAMES | set(ALIAS.findall(code))
    types = r"(?:nlohmann::)?(?:" + "|".join(sorted(names)) + r")\b(?:<[^<>;]*>)?"
    found = re.findall(rf"{types}\s*::\s*{PARSERS}\s*[(<]", code)
    found += re.findall(r"\bdetail::parser\b|\bjson_sax\w*", code)
    found += re.findall(r'"_json(?:_pointer)?\b', code)
    values = set(re.findall(rf"\b{types}\s*&?\s*(\w+)\s*[;={{(,)]", code))
    found += [f">> {name}" for name in re.findall(r">>\s*(\w+)", code) if name in values]
    return found


class JsonSources(unittest.TestCase):
    def test_no_source_has_another_way_in(self):
        sources = ["train_gpt2_fp8.cu"]
        for top in ("engine", "kernels", "tools"):
            for folder, _, names in os.walk(os.path.join(ROOT, top)):
                sources += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names if name.endswith(ENDINGS)]
        self.assertIn(READER, sources)
        self.assertGreater(len(sources), 300)
        for source in sources:
            with open(os.path.join(ROOT, source)) as file:
                text = file.read()
            if source == READER:
                self.assertTrue(other_ways_in(text), "the reader itself is not found")
            else:
                self.assertEqual(other_ways_in(text), [], source)

    def test_every_way_in_is_found(self):
        for code in ("auto j = nlohmann::json::parse(text);", "using J = nlohmann::json;\nauto j = J::parse(text, nullptr, false);",
                     "if (Json::accept(text)) return;", "Json::sax_parse(text, &sax);", "nlohmann::json value;\nstream >> value;",
                     'const auto j = "[1]"_json;', "OrderedJson::from_cbor(bytes);", "nlohmann::ordered_json ::parse (text);",
                     "using Json = nlohmann::basic_json<>;\nJson j = Json::parse(x);"):
            self.assertTrue(other_ways_in(code), code)
        for code in ("// nlohmann::json::parse(text)", "app.parse(argc, argv);", "auto j = parse_json(text);", "int label; file >> label;",
                     "mixed ^ mixed >> 29"):
            self.assertEqual(other_ways_in(code), [], code)


if __name__ == "__main__":
    unittest.main()
