"""What a script comes to without being run: texts and command lines as bash itself would have them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hysweep.schema import BadInput
from hysweep.scripts import arithmetic
from hysweep.scripts.bash import decode
from hysweep.scripts.scope import MARK, PIECE
from hysweep.scripts.shell import Script, read_script


def read(source: str, **given: str) -> Script:
    return read_script(source, "script", given)


def words(source: str, **given: str) -> list[str]:
    """Those of the last command, with $NAME for what the environment has to say."""
    script = read(source, **given)
    return [MARK.sub(lambda m: f"${m[1]}", w.text) for w in script.commands[-1]]


# (a script, the words of its last command); the whole table is also run by bash, where there is one
SAME_AS_BASH = [
    ("A=1\np a=$A b=${A} c=\"$A\" d='$A'", ["a=1", "b=1", "c=1", "d=$A"]),
    ("p ${A:-x} ${A-y} ${A:-${B:-8}} ${A:-\"q r\"}", ["x", "y", "8", "q r"]),
    ("A=\np \"${A:-x}\" \"${A-y}\" \"${A:+z}\" \"${A+w}\"", ["x", "", "", "w"]),
    ("p \"${A:-'x'}\" ${A:-'x'}", ["'x'", "x"]),
    ("p ${A:=5} $A", ["5", "5"]),
    ("n=3\np $((n * 2)) $((1024 * 1024)) $(( (n + 1) * 2 )) ${M:-$(((n + 2) * 3))} $((n/2)) $((-7 % 3))",
     ["6", "1048576", "8", "15", "1", "-1"]),
    ("n=2\np $((n > 1 ? 10 : 20)) $((2 ** 3 ** 2)) $((1 << 4 | 1)) $((0x10)) $((010)) $((!n))",
     ["10", "512", "17", "16", "8", "0"]),
    ("A=(a=1 \"b=2 3\" c='4')\nA+=(d=5)\np \"${A[@]}\" \"${#A[@]}\" ${A[1]}",
     ["a=1", "b=2 3", "c=4", "d=5", "4", "b=2", "3"]),
    ("A=()\np x \"${A[@]}\" y", ["x", "y"]),
    ("A=(1 2)\np \"x${A[@]}y\" \"${A[*]}\"", ["x1", "2y", "1 2"]),
    ("E='a=1   b=2'\np $E \"$E\" x$E", ["a=1", "b=2", "a=1   b=2", "xa=1", "b=2"]),
    ("p a=[1,2] b={x:1} \"c=['a','b']\" d='[\"e\"]'", ["a=[1,2]", "b={x:1}", "c=['a','b']", 'd=["e"]']),
    ("p a\\ b 'c\nd' \"e\\\"f\" $'g\\th' \"i\\\nj\"", ["a b", "c\nd", 'e"f', "g\th", "ij"]),
    ("p one \\\n  two \\\n  three", ["one", "two", "three"]),
    ("A='x,'\\\n'y'\np \"$A\"", ["x,y"]),
    ("a=1; b=2; c=3\nd=$a/lit/$b/$c\np $d $a/lit/$b/$c", ["1/lit/2/3", "1/lit/2/3"]),
    ("x=1\nA=\" $x y \"\nB=\"$A $A\"\np \"$B\"", [" 1 y   1 y "]),
    ("if [ \"${A:-1}\" != 0 ] && { [ \"$B\" = \"\" ] || [ x = y ]; }; then p yes; else p no; fi", ["yes"]),
    ("A=7\nif [[ $A == 1 ]]; then p one; elif (( A % 2 == 1 )); then p odd; else p even; fi", ["odd"]),
    ("[ 3 -gt 1 ] && v=a || v=b\np $v", ["a"]),
    ("[ 0 -gt 1 ] && v=a || v=b\np $v", ["b"]),
    ("[[ abc == a* ]] && v=a || v=b\np $v", ["a"]),
    ("D=npu\ncase \"$D\" in gpu) v=1 ;; n* | x) v=2 ;; *) v=3 ;; esac\np $v", ["2"]),
    ("case z in a) p a ;; *) p other ;; esac", ["other"]),
    ("export A=1 B=2\ndeclare C=3\nlocal_=4\np $A$B$C$local_", ["1234"]),
    ("A=1\nunset A\np ${A:-gone}", ["gone"]),
    ("set -- a 'b c'\np \"$@\" $# \"$2\" ${1} ${3:-none}", ["a", "b c", "2", "b c", "a", "none"]),
    ("set -- a b c\nshift\np \"$@\"", ["b", "c"]),
    ("f() { p \"$1\" in f; }\nf 'x y'", ["x y", "in", "f"]),
    ("L=\nfor v in a b c; do L=\"$L$v\"; done\np $L", ["abc"]),
    ("i=0\nwhile [ $i -lt 3 ]; do i=$((i + 1)); done\np $i", ["3"]),
    ("A=abc_def.txt\np ${A%.txt} ${A#abc_} ${A%%_*} ${A##*_} ${A/abc/x} ${A:0:3} ${#A} ${A^^}",
     ["abc_def", "def.txt", "abc", "def.txt", "x_def.txt", "abc", "11", "ABC_DEF.TXT"]),
    ("A=$(echo hi)\nB=`echo ho`\np $A $B $(printf done) \"$(echo 'a b')\"", ["hi", "ho", "done", "a b"]),
    ("A=$(false && echo yes || echo no)\np $A", ["no"]),
    ("p a=1 2>&1 | cat", ["a=1"]),
    ("# a comment\n: \"${A:=3}\"  # another\np $A # and one", ["3"]),
    ("bash -c 'p inner \"x y\"' >/dev/null; p outer", ["outer"]),
    ("cat <<EOF >/dev/null\nnot $(a command) ${x} ( \" '\nEOF\np after", ["after"]),
    ("A=1 p with", ["with"]),
    ("! [ a = b ] && p differ", ["differ"]),
    ("A=(x\n  # a comment within\n  y)\np \"${A[@]}\"", ["x", "y"]),
    ("A=é\np \"$A ü\"", ["é ü"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), SAME_AS_BASH)
def test_words_are_what_bash_makes_of_them(source: str, expected: list[str]) -> None:
    assert words(source.replace(" | cat", ""))[1:] == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_the_table_is_right_about_bash(tmp_path: Path) -> None:
    """One bash for all: `p` writes its words."""
    parts = ["p() { printf '%s\\0' \"$@\" >&3; }"]
    for n, (source, _) in enumerate(SAME_AS_BASH):
        inner = source.replace("bash -c 'p inner \"x y\"' >/dev/null; ", "")
        parts.append(f"(\n{inner}\n) 3>{tmp_path}/{n} >/dev/null 2>&1")
    (tmp_path / "all.sh").write_text("\n".join(parts), encoding="utf-8")
    subprocess.run(["bash", str(tmp_path / "all.sh")], env={"LC_ALL": "C.UTF-8"}, timeout=30, check=False)
    for n, (source, expected) in enumerate(SAME_AS_BASH):
        assert (tmp_path / str(n)).read_text(encoding="utf-8").split("\0")[:-1] == expected, source


def test_a_variable_of_the_environment_stays_one() -> None:
    assert words('p "$HOME/data" ${DATA}/x')[1:] == ["$HOME/data", "$DATA/x"]
    assert read("p $DATA").scope.needed == {"DATA": 1}
    assert words("p $DATA", DATA="/d")[1:] == ["/d"]


def test_variables_with_defaults_are_listed() -> None:
    script = read("N=${NODES:-2}\np ${A:-${B:-$((2 * 4))}}")
    assert {name: value for name, (value, _) in script.scope.defaults.items()} == {"NODES": "2", "A": "8", "B": "8"}


@pytest.mark.parametrize(
    "source",
    [
        "p x$(nproc)y",
        "p `hostname`",
        "A=$(cat f)\np $A",
        "p $(rm -rf x)",
        "p $((1 / 0))",
        "p $0",
        "p $RANDOM",
        "p <(ls)",
    ],
)
def test_what_is_not_known_is_marked(source: str) -> None:
    assert PIECE in read(source).commands[-1][-1].text


def test_a_given_variable_stands_for_one_that_is_not_known() -> None:
    assert words("N=$(nproc)\np $N", N="8")[1:] == ["8"]


def test_a_probe_is_taken_to_fail_and_says_so() -> None:
    script = read("D=${D:-$(python3 -c 'import x' 2>/dev/null && echo npu || echo gpu)}\np $D")
    assert script.commands[-1][-1].text == "gpu"
    assert [note.what for note in script.scope.notes] == ["is not run: taken to fail"]


@pytest.mark.parametrize("line", ["source env.sh", ". env.sh", 'eval "$X"', "read A"])
def test_what_is_not_read_is_noted_with_its_line(line: str) -> None:
    assert read(f"\n{line}\np").scope.notes[0].line == 2


def test_a_script_that_ends_itself_says_where() -> None:
    script = read('case ${D:-tpu} in gpu) ;; *) echo "no ${D:-tpu}"; exit 1 ;; esac\np')
    assert script.ended == "line 1 ends it: no tpu"


HOSTILE = [
    "A=$A$A\n" * 3,
    "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40,
    "f() { f; }\nf",
    "while true; do :; done",
    "for i in a b c d e f g h; do for j in $L; do L=\"$L $i\"; done; L=\"$L $i $L\"; done",
    "a=b\nb=a\np $((a))",
    "p $((2 ** 99999999999999999999)) $((1 << 9999999999)) $((9" + "9" * 5000 + "))",
    "p ${A:" + "${A:" * 500,
    "(" * 5000,
    "$(" * 3000,
    "if true; then " * 2000,
    "`" * 1001,
    "\"",
    "'",
    "p ${",
    "p $((",
    "<<A\n" * 2000,
    "p \\",
    "",
    "\n\n",
    "A[0]=x\np ${A[9999999999999999]} ${A[$(x)]}",
    "p " + "${A%" + "*" * 1000 + "}",
    "A=" + "ab" * 900 + "\np ${A%" + "*a" * 400 + "b}",
    "bash -c \"$0\"",
    "x() { bash -c 'x'; }\nx",
    "A=(" + "a " * 1000 + ")\n" + "A=(\"${A[@]}\" \"${A[@]}\")\n" * 30,
    "shift 99999999999\nset --\nexit 99x",
    "p ${!A} ${A@Q} ${A[@]:1:2} ${A/%x/y} ${-} ${?}",
    "select x in a; do p; done",
    "coproc p",
    "p {1..99999999}",
    "p *[",
]  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_no_script_brings_it_down(source: str) -> None:
    try:
        read(source)
    except BadInput as e:
        assert str(e)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\x00\x01", "no text holds"), (b"\xff\xfe", "no UTF-8"), (b"p" * 2_000_000, "no launch script")],
)
def test_what_is_no_script_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        decode(content, "x")


def test_a_pasted_prompt_and_windows_lines_are_taken() -> None:
    assert decode(b"\xef\xbb\xbf$ p a \\\r\n  b\r\n", "x") == "p a \\\n  b\n"


@settings(max_examples=60)
@given(st.text(alphabet="ab$(){}[]\"'`\\ \n=;|&<>#*!:-+0123", max_size=60))
def test_no_text_brings_it_down(source: str) -> None:
    try:
        read(source)
    except BadInput as e:
        assert str(e)


@settings(max_examples=80)
@given(st.recursive(st.integers(0, 999).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*&|^"), inner).map(
    lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=8))  # fmt: skip
def test_arithmetic_is_that_of_python_while_it_is_small(text: str) -> None:
    assert arithmetic.evaluate(text, lambda name: name) == (eval(text) + 2**63) % 2**64 - 2**63
