"""Launch scripts are read as a shell reads them, and nothing of them is run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ramet.errors import ConfigError
from ramet.migrate.launch import NOT_RUN, of_script
from ramet.migrate.shell import read_script
from ramet.migrate.shell_values import UNKNOWN
from ramet.migrate.translation import Settings

FUNCTION = "is a function of Hydra, as is a variable of the environment"
RUN = Path("/run.sh")
SAME_AS_BASH = r"""
A=1; B=two
C="$A and ${B}" D='$A is not expanded'
P=1536  # tokens
export R=$((P * 2 + 24))
BIG=$(( (P + $R) / 7 - 3 % 2 ))
LIST=(one "two words" $A)
LIST+=(four)
SPLIT="x=1 y=2"
EMPTY=
JOINED=pre-${B}-post
JOINED+=-more
show first "$C" "$D" $P "$R" ${BIG}
show list "${LIST[@]}" $SPLIT "$SPLIT" "${EMPTY}" \
    a=${UNSET_HERE:-default} b="${A:-no}" 'single "quoted"' "double 'quoted'" "['$A','$B']" word#no-comment $JOINED
show "\$A is \"$A\" \\ \`x\`" \$A '\$A'
show redirected 2>&1 > /dev/null | cat; show next && show last
: "${GIVEN:=now}"; declare -a MORE=("${LIST[@]}" --flag); export -n X=5 Y="a b"
MODEL=owner/Name-7B.sh
show ${#LIST[@]} ${#B} ${LIST[1]} "${LIST[-1]}" $GIVEN "${MORE[@]}" "$Y$X" ${MODEL##*/} ${MODEL%.sh} ${MODEL%%/*} \
    ${MODEL/owner/me} ${MODEL//e/E} ${B,,} "${LIST[*]}" ${UNSET_HERE:+no} ${B:+yes} "${EMPTY-x}" "${B:-'q'}" '<a>' "(b)"
cat > /dev/null <<'EOF'
show "this is a text: it's no command
EOF
cat <<-END > /dev/null
	show neither
	END
if [ -z "$UNSET_HERE" ]; then SIZE=small; elif [ "$B" = two ]; then SIZE=middle; else SIZE=large; fi
if [[ "$MODEL" == *72B* ]]; then GPUS=32; elif [[ $MODEL == *7B* ]] && [ $P -gt 1000 ]; then
    GPUS=8
else
    GPUS=1
fi
case "$SIZE" in
    large|huge) N=64 ;;
    small) N=16; M=2 ;;
    *) N=1 ;;
esac
case $B in one) K=1 ;; two) K=2 ;; esac
[ "$N" -eq 16 ] && JOINED_TEST=yes
[ "$N" -eq 17 ] || OTHER_TEST=yes
[ "$N" -eq 17 ] && N=17
! [ "$N" = 16 ] && N=18
for SEED in 42; do show loop $SEED; done
for NONE in $EMPTY; do show never; done
while [ $# -gt 0 ]; do show never; shift; done
show "$SIZE" $GPUS $N $M $K $JOINED_TEST $OTHER_TEST
train() {
    local lr=$1; shift
    show "lr=$lr" "$@" $#
}
function other { show other "$1"; }
late()
{
    if [ "$1" = yes ]; then { show late; }; fi
}
train 1e-6 "a b" c && other x; late yes; late no
eval "show evaluated $B"
LR=1; N=8
[[ "$A" == one && "$B" == two ]] && LR=9
[[ "$A" == 1 && ! -z "$B" ]] && LR2=3
if [[ "$A" == 2 || "$MODEL" =~ 7B ]]; then LR3=1; else LR3=2; fi
scoped() { local LR=9 LATER=1; OUTER=$LR; }
scoped; show $LR $LR2 $LR3 $OUTER "$LATER"
N=4 show before $N; show after $N
unset CHILD; CHILD=1; export PARENT=2
N=3 bash -c 'show child ${N:-none} ${CHILD:-none} $PARENT; PARENT=5'; show $PARENT $N
( INNER=5
show group $INNER "a b" ) 2>&1 | cat
case $B in (one) K=3 ;; (two) K=4 ;; esac; ( show "$K" )
show "$(echo -n 'a)')" "${UNSET_HERE:-"a}b"}" $'x y' "$(echo "(")"
HERE=$(cd / && pwd); cd /usr; show $HERE $(pwd) $PWD $(basename /a/b.sh .sh) $(dirname "$(dirname /a/b/c)") $(echo x y)
"""


def test_words_are_those_that_bash_makes(tmp_path: Path) -> None:
    """Bash itself, with a function that writes down its words."""
    out = tmp_path / "words"
    function = f'show() {{ printf \'%s\\n\' "$#" "$@" >> {out}; }}\nexport -f show\n'
    subprocess.run(["bash", "-c", function + SAME_AS_BASH], check=True, cwd=tmp_path)
    lines = out.read_text().splitlines()
    expected: list[list[str]] = []
    while lines:
        n = int(lines[0])
        expected.append(lines[1 : 1 + n])
        lines = lines[1 + n :]
    commands = read_script(SAME_AS_BASH, tmp_path / "run.sh").commands
    assert [command.words[1:] for command in commands if command.words[0] == "show" and command.live] == expected


def test_nothing_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "was_run"
    script = f"X=$(touch {trap})\n`touch {trap}`\ntouch {trap}\nbash -c 'touch {trap}'\neval touch {trap}\n"
    script += f"echo $(touch {trap}) <(touch {trap})\n"
    assert read_script(script, tmp_path / "run.sh").commands[-1].words[0] == "echo"
    assert not trap.exists()


def test_where_the_script_is_and_parts_of_paths_are_known() -> None:
    text = """
HERE="$( cd "$( dirname "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"
UP="$(dirname "$HERE")"
ROOT=$(cd "$(dirname "$0")/.." && pwd)
UPPER="$(cd "$HERE/.." && pwd)"
show $HERE $UP $ROOT $UPPER $(basename /a/b.c) x-$(date +%s) $(cd $(dirname $(realpath $0)); pwd)
"""
    words = read_script(text, Path("/srv/run/scripts/train.sh")).commands[-1].words
    assert words[1:5] == ["/srv/run/scripts", "/srv/run", "/srv/run", "/srv/run"]
    assert words[5:] == ["b.c", f"x-{UNKNOWN}", "/srv/run/scripts"]


def test_what_is_set_under_a_condition_that_is_not_known_counts_where_nothing_was_set_before() -> None:
    text = "N=1\nif [ -f x ]; then\n  N=2\n  ONLY=3\nelse\n  ONLY=4\nfi\n[ -d x ] && N=4\nshow $N $ONLY\n"
    script = read_script(text, RUN)
    assert script.commands[-1].words == ["show", "1", "3"] and script.commands[-1].live
    assert script.notes == [f"{name} is also set under a condition, which is not read" for name in ("N", "ONLY", "N")]


def test_a_branch_that_does_not_run_is_no_launch_and_one_that_may_says_so() -> None:
    text = "if [ a = b ]; then\n  show never\nelse\n  show always\nfi\nif nvidia-smi; then show perhaps; fi\n"
    lives = {command.words[1]: command.live for command in read_script(text, RUN).commands}
    assert lives == {"never": False, "always": True, "perhaps": None}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("N=1\nnvidia-smi && N=8\nshow $N", ["1"]),
        ("nvidia-smi || N=1\nshow $N", ["1"]),
        ("nvidia-smi && export N=8 || export N=1\nshow $N", ["8"]),
        ("F=\nfor f in a b; do F=$F,$f; done\nshow $F $f", [UNKNOWN, UNKNOWN]),
        (
            "f() { case $1 in a*|c*) echo 2e-6 ;; *) echo 1e-6 ;; esac; }\nshow $(f ab) $(f b)",
            ["2e-6", "1e-6"],
        ),
        ("f() { nproc; echo 1; }\nshow $(f)", [UNKNOWN]),
        ("D=6,7\nshow $(echo $D | tr ',' '\\n' | wc -l)", ["2"]),
        ("N=5\nshow $((N % 4 == 0 ? N : N / 4 * 4)) $((N > 4 ? 1 : 0)) $((N != 5))", ["4", "1", "0"]),
        ("for f in a; do F=$F,$f; done\nshow $F $f", [",a", "a"]),
    ],
)
def test_what_a_program_says_and_later_rounds_of_a_loop_decide_no_value(text: str, words: list[str]) -> None:
    assert read_script(text, RUN).commands[-1].words[1:] == words


def test_a_file_outside_the_project_is_not_read(tmp_path: Path) -> None:
    """However many files that it may read lead there."""
    folder = tmp_path / "outside" / "project" / "scripts"
    folder.mkdir(parents=True)
    (tmp_path / "outside" / "other.sh").write_text("show other\n")
    (tmp_path / "outside" / "project" / "common.sh").write_text(f"source {tmp_path}/outside/other.sh\n")
    (folder / "link.sh").symlink_to(tmp_path / "outside" / "other.sh")
    text = f"source {folder.parent}/common.sh\nsource {folder}/link.sh\nshow run\n"
    shown = [command.words for command in read_script(text, folder / "run.sh").commands if command.words[0] == "show"]
    assert shown == [["show", "run"]]
    (tmp_path / "outside" / "project" / "my.yaml").write_text("a: {b: 3}\n")
    (tmp_path / "outside" / "my.yaml").write_text("a: {b: 3, c: secret}\n")
    line = "python -m verl.trainer.main_ppo --config-name=my a.d=1 --config-path="
    assert launched(line + str(tmp_path / "outside"), folder).values == {"a.d": 1}
    assert launched(line + str(tmp_path / "outside" / "project"), folder).values == {"a.b": 3, "a.d": 1}


def test_arguments_of_a_script_are_not_known_and_have_defaults() -> None:
    words = read_script('show ${1:-first} n=$2 "$@" $#', RUN).commands[-1].words
    assert words == ["show", "first", f"n={UNKNOWN}", "0"]


def test_a_variable_that_is_not_set_is_reported_and_no_number() -> None:
    script = read_script("show a=$NOWHERE b=$((NOWHERE * 2))", RUN)
    assert script.commands[-1].words == ["show", "a=", f"b={UNKNOWN}"]
    assert script.notes == ["NOWHERE is not set in the script: an empty text"]


def test_what_a_command_may_have_changed_is_not_known() -> None:
    text = (
        "A=(1 2); N=1; M=1; K=1; H=1\nA[1]=3\n((N++))\nlet M*=2\nread -r K < file\n(( H == 1 ))\nshow $A $N $M $K $H\n"
    )
    assert read_script(text, RUN).commands[-1].words == ["show", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "1"]


def test_a_script_that_would_not_end_is_read_in_no_time() -> None:
    text = "f() { f; f; }\nf\nN=$((9**63))\nM=$((N**63))\nR=R\nshow $((2**62)) $M $((R))\n"
    shown = [command.words for command in read_script(text, RUN).commands if command.words[0] == "show"]
    assert shown == [["show", str(2**62), UNKNOWN, UNKNOWN]]


def test_files_of_the_same_project_that_a_script_reads_are_read(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "common.sh").write_text("N=8\nHERE=$(dirname ${BASH_SOURCE[0]})\n")
    (tmp_path / "scripts" / "base.sh").write_text('show base "$@"\n')
    (tmp_path / "scripts" / "broken.sh").write_text("'")
    text = (
        'D=$(cd "$(dirname "$0")" && pwd)\nsource $D/../common.sh\n. $D/broken.sh\nsource /none.sh\n'
        "bash $D/base.sh n=$N here=$HERE\n"
    )
    script = read_script(text, tmp_path / "scripts" / "run.sh")
    assert ["show", "base", "n=8", f"here={tmp_path}"] in [command.words for command in script.commands]
    assert script.notes[0] == "common.sh, which the script calls, was read too"


def test_the_forms_of_scripts_that_are_common_do_not_hide_a_launch() -> None:
    text = """
exec > >(tee -a log.txt) 2>&1
: "${GPUS:=4}"
while [[ $# -gt 0 ]]; do
    case "$1" in
        --model) MODEL="$2"; shift 2 ;;
        *) echo "unknown"; exit 1 ;;
    esac
done
# a comment that ends with a backslash \\
run() {
    show "$@"
}
show n=$GPUS"""
    shown = [command.words for command in read_script(text, RUN).commands if command.live]
    assert ["show", "n=4"] in shown


@pytest.mark.parametrize("text", ["show 'open", 'show "open', "show $((1+2", "show ${OPEN"])
def test_a_script_that_does_not_end_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.sh"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.sh: cannot be read: "):
        of_script(path)


def launched(text: str, folder: Path) -> Settings:
    path = folder / "run.sh"
    path.write_text(text)
    return of_script(path)


def test_a_value_that_needs_a_command_is_reported(tmp_path: Path) -> None:
    text = "python -m verl.trainer.main_ppo trainer.experiment_name=r-$(date +%s) trainer.nnodes=2\n"
    launch = launched(text, tmp_path)
    assert launch.values == {"trainer.nnodes": 2}
    assert launch.unread == {"trainer.experiment_name": NOT_RUN}


def test_references_of_hydra_are_followed_but_no_variable_of_the_environment(tmp_path: Path) -> None:
    launch = launched(
        "python -m verl.trainer.main_ppo a.size=64 'a.same=${a.size}' 'a.list=[${a.size},2]' \\\n"
        "  'a.no=${no.where}' 'a.secret=${oc.env:HOME}'\\\n"
        "  a.env=env 'a.same_secret=${oc.${a.env}:HOME}' 'a.spaced=${ oc.env:HOME}' 'a.behind=${a.secret}'\n",
        tmp_path,
    )
    assert launch.values == {"a.size": 64, "a.same": 64, "a.list": [64, 2], "a.env": "env"}
    assert launch.unread == {
        "a.no": "${no.where} refers to what the launch does not set",
        "a.secret": f"${{oc.env:HOME}} {FUNCTION}",
        "a.same_secret": f"${{oc.${{a.env}}:HOME}} {FUNCTION}",
        "a.spaced": f"${{ oc.env:HOME}} {FUNCTION}",
        "a.behind": "${a.secret} refers to what the launch does not set",
    }


@pytest.mark.parametrize(
    "before",
    [
        "python3 -m verl.trainer.main_ppo", "python verl/trainer/main_ppo.py", "HYDRA_FULL_ERROR=1 python -m recipe.my",
        "torchrun --nnodes=1 -m verl.trainer.main_ppo", "nohup python3 -u -m verl.trainer.main_ppo",
        "ray job submit --address=http://$IP:8265 --runtime-env=env.yaml -- python3 -m verl.trainer.main_ppo",
        "PYTHONUNBUFFERED=1 srun --overlap python3 -m verl.trainer.main_ppo", "( python3 -m verl.trainer.main_ppo",
    ],
)  # fmt: skip
def test_a_launch_is_found_however_it_is_started(before: str, tmp_path: Path) -> None:
    end = ")" if before.startswith("(") else "2>&1 | tee log.txt"
    text = f"IP=host\nset -x\n{before} data.train_batch_size=8 ++trainer.nnodes=2 +data.seed=3 $@ {end}\n"
    assert launched(text, tmp_path).values == {"data.train_batch_size": 8, "trainer.nnodes": 2, "data.seed": 3}


def test_what_comes_after_a_comment_between_the_lines_is_named(tmp_path: Path) -> None:
    text = "python -m verl.trainer.main_ppo a.b=1 \\\n    # data\n    data.seed=3 trainer.nnodes=2 \\\n    x.y=1\n"
    launch = launched(text, tmp_path)
    assert launch.values == {"a.b": 1}
    assert [*launch.unread] == ["data.seed", "trainer.nnodes", "x.y"]
    assert "ends the command" in launch.unread["data.seed"]


def test_values_keep_their_form(tmp_path: Path) -> None:
    launch = launched(
        'python -m verl.trainer.main_ppo optim.lr=1e-6 trainer.logger=\'["console","wandb"]\' a.b=null a.c=True \\\n'
        "  'a.text=\"x y\"' 'a.path=<your_path>' +data.apply_chat_template_kwargs.enable_thinking=False \\\n"
        "  'a.section={one:1,two:{three:3}}' ~trainer.nnodes model_engine=dp 'a.key=${oc.env:SECRET}' a.list=[]\n",
        tmp_path,
    )
    assert launch.values == {
        "optim.lr": 1e-6, "trainer.logger": ["console", "wandb"], "a.b": None, "a.c": True, "a.text": "x y",
        "a.path": "<your_path>", "data.apply_chat_template_kwargs": {"enable_thinking": False}, "a.section.one": 1,
        "a.section.two.three": 3, "a.list": [], "model_engine": "dp",
    }  # fmt: skip
    assert launch.unread == {"a.key": f"${{oc.env:SECRET}} {FUNCTION}"}
    assert launch.remarks[-1].startswith("~trainer.nnodes: ")


def test_numbers_of_a_config_file_beside_the_script_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("defaults: [ppo_trainer]\noptim:\n  lr: 1e-6\n  _target_: x\n  name: ???\n")
    launch = launched("python -m verl.trainer.main_ppo --config-name my a.b=1 'a.c=${a.b}'\n", tmp_path)
    assert launch.values == {"optim.lr": 1e-6, "a.b": 1, "a.c": 1}
    (tmp_path / "my.yaml").write_text("longest: 512\na: {b: '${longest}'}\n")
    launch = launched("python -m verl.trainer.main_ppo --config-name my longest=2048 c.d=1\n", tmp_path)
    assert launch.values == {"longest": 2048, "a.b": 2048, "c.d": 1}
    (tmp_path / "my.yaml").write_text("defaults: [mine, _self_]\nn: 1\n")
    launch = launched("python -m verl.trainer.main_ppo --config-name my a.b=1\n", tmp_path)
    assert launch.remarks[-1] == "my.yaml builds on mine, which were not read"


def test_of_several_launches_the_one_that_runs_is_read(tmp_path: Path) -> None:
    line = "python -m verl.trainer.main_ppo trainer.nnodes="
    text = f'MODE=${{MODE:-many}}\nif [ "$MODE" = one ]; then\n  {line}1\nelse\n  {line}4\nfi\n'
    launch = launched(text, tmp_path)
    assert launch.values == {"trainer.nnodes": 4}
    assert launch.remarks == ["2 launches are in the script, and one was read"]
    launch = launched(f"for N in 2 8; do {line}$N; done\n", tmp_path)
    assert launch.values == {"trainer.nnodes": 2}
    assert launch.remarks == ["the launch is inside a loop, of which the first round was read"]


def test_a_script_without_a_launch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("echo hello\n")
    with pytest.raises(ConfigError, match="no launch of verl in it"):
        of_script(path)


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ("--nnodes=2 --nproc_per_node=$N", 8), ("-m --nnodes 1 --nproc-per-node 4", 4), ("--standalone", None),
        ("--nproc_per_node=$1", None), ("--nnodes=1:4 --nproc_per_node=8", None),
        ("--nnodes=$NODES --nproc_per_node=8", None),
    ],
)  # fmt: skip
def test_the_processes_of_a_launch_of_sft_are_those_of_torchrun(
    options: str, processes: int | None, tmp_path: Path
) -> None:
    launch = launched(
        f"N=4\ntorchrun {options} verl.trainer.fsdp_sft_trainer data.train_files=x engine=fsdp\n", tmp_path
    )
    assert launch.is_sft and launch.processes == processes
    assert launch.values == {"data.train_files": "x"} and list(launch.unread) == ["engine"]
