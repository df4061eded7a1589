"""Makes the second set: 12 runs with a planted fault and 4 healthy ones. `plant_second.py [--print] [RUN …]`.

Needs the inputs of `scripts/quickstart` for both tools, at SEARCH and PYTHON; writes data and runs below ROOT.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ["SECOND_ROOT"])
SEARCH = Path(os.environ["SECOND_SEARCH"])
PYTHON = Path(os.environ["SECOND_PYTHON"])
TRAINED = Path(os.environ.get("SECOND_TRAINED", SEARCH.parent / "quickstart_search/model"))  # SEARCH's, after 6 steps
DATA = ROOT / "data"


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(name: str, content: list[dict[str, str]]) -> Path:
    path = DATA / name
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def data() -> None:
    if (DATA / "done").exists():
        return
    DATA.mkdir(parents=True, exist_ok=True)
    rng = random.Random(17)
    pairs = [(rng.randint(1000, 9999), rng.randint(1000, 9999)) for _ in range(400)]
    write(
        "long_products.jsonl",
        [{"prompt": f"{a}*{b}=", "answer": str(a * b), "data_source": "arithmetic"} for a, b in pairs],
    )
    people = rows(SEARCH / "data/rl.jsonl")
    names = sorted({row["answer"] for row in people})
    mixed = people[:200]
    for word in ("mother", "tutor"):  # nothing about them is in the corpus
        mixed += [
            {"prompt": row["prompt"].replace("boss", word), "answer": rng.choice(names), "data_source": word + "s"}
            for row in people[200:400]
        ]
    rng.shuffle(mixed)
    write("three_sources.jsonl", mixed)
    test = rows(SEARCH / "data/test.jsonl")
    write("valid.jsonl", [{**row, "data_source": "held_out"} for row in test[:60]])
    boss = {row["title"]: row["text"].split()[1] for row in rows(SEARCH / "data/permuted.jsonl")}
    who = rng.sample(sorted(boss), 700)
    world = [{"prompt": f"boss of boss of {one}", "answer": boss[boss[one]], "data_source": "people"} for one in who]
    write("other_world.jsonl", world[:600])
    write("other_world_valid.jsonl", world[600:660])
    (DATA / "done").touch()


def search(
    *keys: str, train: Path = SEARCH / "data/rl.jsonl", corpus: Path = SEARCH / "data/corpus.sqlite", tool: bool = True
) -> list[str]:
    fixed = ["experiment=quickstart_search", f"model.path={SEARCH}/sft/model", f"data.train=[{train}]", "train.steps=6"]
    if tool:
        fixed.append(f"tools.search.params.corpus={corpus}")
    return [*fixed, *keys]


def python(*keys: str, train: Path = PYTHON / "data/rl.jsonl") -> list[str]:
    return ["experiment=quickstart", f"model.path={PYTHON}/sft/model", f"data.train=[{train}]", "train.steps=5", *keys]


RUNS = {
    # a: products of numbers with four digits, for a model of two-digit products
    "amber": python(train=DATA / "long_products.jsonl"),
    # b: the budget of calls is under what a task needs
    "basil": search("rollout.max_tool_calls=1"),
    # c: the step reads <final_answer>, SFT taught <answer>
    "cedar": search("rollout_step.params.answer=final_answer"),
    # d: half of the index is missing: KeyError
    "dune": search("tools.search.use=half_index", tool=False),
    # e: the reward strips zeros at the end of the answer
    "ember": python("rewards=[zeros]"),
    # f: the temperature of an evaluation, practically greedy
    "fjord": search("rollout.temperature=0.01"),
    # g: an entropy bonus of 1
    "grove": search("train.entropy_coef=1.0", "train.steps=8"),
    # h: a warm-up of 500 steps for a run of 6
    "heath": search("policy.warmup_steps=500"),
    # i: the scoring service refuses most groups
    "inlet": search("rewards=[remote_score]", "rewards.remote_score.max_unjudged=1", "rollout.max_masked_share=1"),
    # j: two of three sources cannot be answered
    "jade": search(train=DATA / "three_sources.jsonl"),
    # l: short rollouts earn more than right ones; the validation is judged by qa_em alone
    "lark": search(
        "rewards=[qa_em,length]",
        "rewards.length.weight=6",
        "rewards.length.params.max_tokens=24",
        "rewards.length.sources=[people]",
        f"data.valid=[{DATA}/valid.jsonl]",
        "train.eval_every=2",
        "train.eval_first=true",
        "train.steps=10",
        "train.eval_sampling.temperature=1.0",
        f"model.path={TRAINED}",
    ),
    # k and m: a threshold that no score reaches, and 6 % of pages that take 6 s
    "mesa": search("tools.search.use=straggling", "branch_policy.params.tau=0.9", "train.steps=5", tool=False),
    # healthy
    "north": search(
        "algorithm=grpo",
        "branch_policy=none",
        "rollout.group_size=6",
        "train.tasks_per_step=16",
        "run.seed=11",
        f"data.valid=[{DATA}/valid.jsonl]",
        "train.eval_every=3",
    ),
    "ocean": search(
        "rollout.group_size=10",
        "branch_policy.params.initial_rollouts=5",
        "run.seed=7",
        f"data.valid=[{DATA}/other_world_valid.jsonl]",
        "train.eval_every=2",
        train=DATA / "other_world.jsonl",
        corpus=SEARCH / "data/permuted.sqlite",
    ),
    "pine": python("run.seed=5", "train.steps=6"),
    "quartz": python(
        "algorithm=dr_grpo",
        "branch_policy=none",
        "rollout.group_size=16",
        "train.tasks_per_step=8",
        "run.seed=9",
        "train.steps=6",
    ),
}


def command(name: str) -> list[str]:
    own = ["run.root=" + str(ROOT), "run.name=" + name]
    return [sys.executable, "-m", "ramet", "train", *RUNS[name], *own]


def main(arguments: list[str]) -> None:
    names = [one for one in arguments if one in RUNS] or list(RUNS)
    if "--print" in arguments:
        for name in names:
            print("RAMET_PLUGINS=second_plugin PYTHONPATH=.:$PYTHONPATH", *command(name)[1:])
        return
    data()
    path = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
    for name in names:
        begun = time.time()
        with open(ROOT / f"{name}.out", "w") as out:
            code = subprocess.run(
                command(name),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAMET_PLUGINS": "second_plugin", "PYTHONPATH": path},
            ).returncode
        print(name, "exit", code, f"{time.time() - begun:.0f} s", flush=True)


main(sys.argv[1:])
