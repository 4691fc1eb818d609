#!/usr/bin/env python3
"""No file includes upwards. The rooms and what stands below each are read from CMake's own lines

    file(GLOB NAME_SOURCES ... FOLDER/PATTERN ...)
    gpt2_room(NAME SOURCES ${NAME_SOURCES} LINK OTHER_ROOMS ...)

so that the map here cannot drift from what is built. A file may include from its own room and from the rooms that its
target links, directly or through others. A header in a folder that two rooms share (kernels/*.h, the contract of the CPU
and the CUDA kernels) belongs to the lower one. Calls upwards are the linker's to find (the target `rooms`).
"""
import fnmatch
import os
import re
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CMAKE_FILES = ("CMakeLists.txt", "cmake/cuda_engine.cmake")
PROGRAMS = "programs"  # train_gpt2_fp8.cu and tools/*.cpp: on top of every room
SOURCE_ENDINGS = (".h", ".cuh", ".cpp", ".cu")
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<((?:engine|kernels|tools|tests)/[^>]+)>)')


class Room:
    def __init__(self, patterns, links):
        self.patterns = patterns  # of its sources, such as kernels/*.cu
        self.links = links  # names of rooms
        self.below = set()  # all that it may use, itself included

    def compiles(self, path):
        # fnmatch lets * cross folders, CMake does not
        return any(os.path.dirname(path) == os.path.dirname(p) and fnmatch.fnmatch(path, p) for p in self.patterns)

    def folders(self):
        return {os.path.dirname(pattern) for pattern in self.patterns}


def read_rooms(root):
    text = ""
    for name in CMAKE_FILES:
        with open(os.path.join(root, name)) as file:
            text += re.sub(r"#.*", "", file.read())
    globs = {name: words.split() for name, words in re.findall(r"file\(GLOB (\w+) CONFIGURE_DEPENDS ([^)]*)\)", text)}
    # Parentheses inside are those of generator expressions' names only, never of calls.
    calls = re.findall(r"^gpt2_room\((\w+) SOURCES \$\{(\w+)\}\s+LINK ([^)]*)\)", text, re.MULTILINE)
    if len(calls) != len(re.findall(r"^gpt2_room\(", text, re.MULTILINE)):
        raise ValueError("a gpt2_room(...) call has another form than this test reads")
    names = [name for name, _, _ in calls]
    rooms = {}
    for name, sources, rest in calls:
        links = [word for word in re.findall(r"\w+", rest.split("INCLUDE")[0]) if word in names]
        rooms[name] = Room(globs[sources], links)
    for name, room in rooms.items():
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current not in room.below:
                room.below.add(current)
                waiting += rooms[current].links
    return rooms


def room_of(path, rooms):
    """The room of a file of ours; None if no target owns its folder."""
    if path == "train_gpt2_fp8.cu" or os.path.dirname(path) == "tools":
        return PROGRAMS
    for name, room in rooms.items():
        if room.compiles(path):
            return name
    owners = [name for name, room in rooms.items() if os.path.dirname(path) in room.folders()]
    return min(owners, key=lambda name: len(rooms[name].below)) if owners else None


def our_files(root):
    if os.path.exists(os.path.join(root, "train_gpt2_fp8.cu")):
        yield "train_gpt2_fp8.cu"
    for top in ("engine", "kernels", "tools"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith(SOURCE_ENDINGS):
                    yield os.path.relpath(os.path.join(folder, name), root)


def find_violations(root):
    """One line FILE:LINE: ... for each include that a room may not make."""
    rooms = read_rooms(root)
    violations = []
    for path in our_files(root):
        room = room_of(path, rooms)
        if room is None:
            violations.append(f"{path}:1: its folder belongs to no gpt2_room(...) of CMake")
            continue
        allowed = rooms[room].below if room in rooms else {PROGRAMS, *rooms}
        with open(os.path.join(root, path)) as file:
            for number, line in enumerate(file, 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                included = match[1] or match[2]
                where = f'{path}:{number}: includes "{included}"'
                if not os.path.exists(os.path.join(root, included)):
                    violations.append(f"{where}, which is no path from the root of the tree")
                elif room_of(included, rooms) not in allowed:
                    violations.append(f"{where} of {room_of(included, rooms) or 'no room'}, which {room} does not link")
    return violations


def unit_of(path, files):
    """A header with the sources that implement it: kernels/gelu.h, gelu.cu and gelu_cpu.cpp are kernels/gelu."""
    stem = os.path.splitext(path)[0]
    for candidate in (stem, stem.removesuffix("_cpu")):
        if candidate + ".h" in files or candidate + ".cuh" in files:
            return candidate
    return stem


def find_circles(root):
    """Groups of units that include each other, directly or through others."""
    files = set(our_files(root))
    uses = {unit_of(path, files): set() for path in files}
    for path in files:
        with open(os.path.join(root, path)) as file:
            included = {match[1] or match[2] for match in map(INCLUDE.match, file) if match}
        uses[unit_of(path, files)] |= {unit_of(other, files) for other in included & files}
    reached = {}
    for unit in uses:
        reached[unit], waiting = set(), [unit]
        while waiting:
            new = uses[waiting.pop()] - reached[unit]
            reached[unit] |= new
            waiting += new
    circles = {frozenset(other for other in reached[unit] if unit in reached[other]) for unit in uses}
    return sorted(sorted(circle) for circle in circles if len(circle) > 1)


class Tree(unittest.TestCase):
    def test_no_circle_of_more_than_two_units(self):
        circles = [" ".join(circle) for circle in find_circles(ROOT) if len(circle) > 2]
        self.assertEqual(circles, [], "\n" + "\n".join(circles))

    def test_no_file_includes_upwards(self):
        violations = find_violations(ROOT)
        self.assertEqual(violations, [], "\n" + "\n".join(violations))

    def test_every_room_and_file_is_seen(self):
        rooms = read_rooms(ROOT)
        self.assertLessEqual({"gpt2_base", "gpt2_kernels", "gpt2_kernels_cuda", "gpt2_cuda", "gpt2_run"}, set(rooms))
        self.assertEqual(rooms["gpt2_base"].below, {"gpt2_base"})
        tools = {name for name, room in rooms.items() if any(f.startswith("tools/") for f in room.folders())}
        self.assertLessEqual({"gpt2_plan", "gpt2_report", "gpt2_sweep", "gpt2_doctor", "gpt2_prepare_data"}, tools)
        self.assertEqual(rooms["gpt2_run"].below, set(rooms) - tools)
        self.assertEqual(room_of("kernels/layernorm.h", rooms), "gpt2_kernels")
        self.assertEqual(room_of("kernels/layernorm.cu", rooms), "gpt2_kernels_cuda")
        self.assertEqual(room_of("kernels/device/vector.cuh", rooms), "gpt2_kernels_cuda")
        self.assertGreater(len(list(our_files(ROOT))), 100)


class ItsOwnRules(unittest.TestCase):
    """A small tree of three rooms: base < left, right."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="test_rooms_")
        self.addCleanup(temporary.cleanup)
        self.root = temporary.name
        self.write("CMakeLists.txt", """
            file(GLOB BASE_SOURCES CONFIGURE_DEPENDS engine/base/*.cpp)
            file(GLOB LEFT_SOURCES CONFIGURE_DEPENDS kernels/*_cpu.cpp)
            gpt2_room(gpt2_base SOURCES ${BASE_SOURCES} LINK Threads::Threads)
            gpt2_room(gpt2_left SOURCES ${LEFT_SOURCES} LINK gpt2_base
                       INCLUDE gpt2_right)""")
        self.write("cmake/cuda_engine.cmake", """
            file(GLOB RIGHT_SOURCES CONFIGURE_DEPENDS kernels/*.cu kernels/device/*.cuh)
            gpt2_room(gpt2_right SOURCES ${RIGHT_SOURCES} LINK $<$<BOOL:ON>:gpt2_left>) # gpt2_left is below""")
        for header in ("engine/base/low.h", "kernels/contract.h", "kernels/device/high.cuh", "tools/shared.h"):
            self.write(header, "#pragma once\n")

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(re.sub(r"^ {12}", "", text, flags=re.MULTILINE))

    def test_includes_downwards_pass(self):
        self.write("engine/base/low.cpp", '#include <vector>\n#include "engine/base/low.h"\n')
        self.write("kernels/op_cpu.cpp", '#include "kernels/contract.h"\n#include "engine/base/low.h"\n')
        self.write("kernels/op.cu", '#include "kernels/contract.h"\n#include "kernels/device/high.cuh"\n')
        self.write("tools/tool.cpp", '#include "kernels/device/high.cuh"\n#include "tools/shared.h"\n')
        self.assertEqual(find_violations(self.root), [])

    def check_caught(self, path, line):
        self.write(path, f"// comment\n{line}\n")
        violations = find_violations(self.root)
        self.assertEqual(len(violations), 1, violations)
        self.assertTrue(violations[0].startswith(f"{path}:2: "), violations[0])

    def test_an_include_upwards_is_caught(self):
        self.check_caught("engine/base/low.cpp", '#include "kernels/contract.h"')

    def test_a_contract_header_may_not_include_device_code(self):
        self.check_caught("kernels/other.h", '#  include "kernels/device/high.cuh"')

    def test_angle_brackets_do_not_hide_it(self):
        self.check_caught("kernels/op_cpu.cpp", "#include <kernels/device/high.cuh>")

    def test_nobody_includes_a_tool(self):
        self.check_caught("kernels/op.cu", '#include "tools/shared.h"')

    def test_a_circle_is_found(self):
        self.write("engine/base/a.h", '#include "engine/base/b.h"')
        self.write("engine/base/b.cpp", '#include "engine/base/b.h"\n#include "engine/base/c.h"')
        self.write("engine/base/b.h", "")
        self.write("engine/base/c.h", "")
        self.assertEqual(find_circles(self.root), [])
        self.write("engine/base/c.h", '#include "engine/base/a.h"')
        self.assertEqual(find_circles(self.root), [["engine/base/a", "engine/base/b", "engine/base/c"]])

    def test_paths_start_at_the_root(self):
        self.check_caught("kernels/op.cu", '#include "contract.h"')

    def test_a_folder_without_a_room_is_caught(self):
        self.write("engine/stray/file.h", "#pragma once\n")
        self.assertEqual(find_violations(self.root),
                         ["engine/stray/file.h:1: its folder belongs to no gpt2_room(...) of CMake"])


if __name__ == "__main__":
    unittest.main()
