import asyncio, random, json
import pytest
from core.tests.rollout.agents.conftest import HttpAgent, TOOL, CALL
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.branching.token_entropy import TokenEntropy
from ramet.rollout.config import RandomBranchConfig, TokenEntropyConfig
from ramet.rollout.record import *
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.policy.batching.rows import rows_of
from ramet.policy.batching.threads import Threads
from ramet.testing.doubles import Reply
from ramet.types import *

def ids(segments): return [t for s in segments for t in s.token_ids]

def make_loop(parallel):
    async def loop(task, ctx, chat):
        rng = random.Random(ctx.seed)
        convs = []
        for step in range(rng.randint(3, 7)):
            def pick():
                kind = rng.choice(["new", "cont", "cont", "cont", "edit", "drop", "same", "same_sys"])
                if not convs or kind == "new":
                    m = [{"role": "user", "content": rng.choice(["a", "bb", "hello", "what is 2+2?"])}]
                elif kind == "same_sys":
                    m = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": rng.choice(["a", "bb"])}]
                else:
                    m = [dict(x) for x in rng.choice(convs)]
                    if kind == "edit":
                        i = rng.randrange(len(m))
                        if not m[i].get("tool_calls"):
                            m[i]["content"] = str(m[i].get("content") or "") + "!"
                    if kind == "drop" and len(m) > 2:
                        m = m[: rng.randint(1, len(m) - 1)]
                    if kind == "same" and m[-1]["role"] == "assistant":
                        m = m[:-1]
                # fix: answer calls, end with user
                out = []
                for x in m:
                    out.append(x)
                ids_ = set(); 
                res = []
                for i, x in enumerate(out):
                    if x["role"] == "tool" and x["tool_call_id"] not in ids_:
                        continue
                    for c in x.get("tool_calls") or []: ids_.add(c["id"])
                    res.append(x)
                m = res
                last = m[-1]
                if last["role"] == "assistant":
                    if last.get("tool_calls"):
                        for c in last["tool_calls"]:
                            m.append({"role": "tool", "tool_call_id": c["id"], "content": rng.choice(["4", "5 x"])})
                    else:
                        m.append({"role": "user", "content": rng.choice(["more", "why?"])})
                return m, rng.choice([3, 8, 60, 60])
            n = rng.choice([1, 1, 2, 3]) if parallel else 1
            asks = [pick() for _ in range(n)]
            said = await asyncio.gather(*(chat(m, tools=[TOOL], max_tokens=k) for m, k in asks), return_exceptions=True)
            for (m, k), s in zip(asks, said):
                if isinstance(s, dict): convs.append([*m, s])
        return AgentResult(answer="x", reward=1.0)
    return loop

@pytest.mark.parametrize("seed", range(60,260))
@pytest.mark.parametrize("mode", ["random", "entropy", "det"])
def test_fuzz(play, seed, mode, tmp_path):
    rng = random.Random(seed)
    parallel = mode != "det" and seed % 2 == 0
    def script(task, path, turn):
        r = random.Random(f"{path}/{turn}/{seed}")
        text = r.choice([CALL, "four", "an answer that is longer", CALL + CALL, "", "<think>hm</think> yes"])
        return Reply(text=text, entropies=tuple(r.random() * 2 for _ in range(7)), rest_s=r.choice([0, 0, 0.005]))
    policy = TokenEntropy(TokenEntropyConfig(initial_rollouts=2, min_entropy=0.0, max_forks=2)) if mode == "entropy" else RandomBranching(RandomBranchConfig(initial_rollouts=2, probability=0.5))
    history = "template" if seed % 3 == 0 else "keep"
    played = play(script, step=HttpAgent(make_loop(parallel), forks="replay", history=history), policy=policy, tools={}, group_size=6, seed=seed, deterministic=mode == "det", max_turns=rng.choice([3,5,40]), max_response_tokens=rng.choice([30,80,150,4000]))
    pass
    by = {r.id: r for r in played.rollouts}
    assert len(by) == 6
    faults = [(r.id, r.parent, r.fault.where, r.fault.message[:200]) for r in played.rollouts if r.fault]
    if faults:
        print("FAULTS", mode, seed, faults)
    assert not faults or parallel
    for request in played.engine.requests:
        path = request.id.split("/")[-2]
        assert any(list(request.token_ids) == ids(t.segments)[: len(request.token_ids)] for t in by[path].threads), request.id
    for r in played.rollouts:
        own = sum(len(s) for s in r.segments[r.n_shared:] if s.is_sampled)
        assert own == r.stats.get("sampled_tokens", 0), (r.id, own, r.stats)
        assert [s.turn for s in r.segments] == sorted(s.turn for s in r.segments)
        if r.parent is not None:
            p = by[r.parent]
            assert all(a is b for a, b in zip(r.segments[: r.n_shared], p.segments))
        n = len({s.thread for s in r.segments}); assert n == len(r.threads), (n, len(r.threads))
        for t, th in enumerate(r.threads):
            assert th.own and all(s.thread == t for s in th.own)
            for s in th.own:
                assert s.thread == t
        if r.fault is None:
            assert len(r.infos) == len(r.turn_rewards) == 1 + max(s.turn for s in r.segments)
    group = played.groups[0]
    scored = ScoredGroup(task=group.task, rollouts=tuple(ScoredRollout(rollout=r, reward=1.0 if r.fault is None else None) for r in group.rollouts))
    rec = GroupRecord(step=0, group=scored)
    write_records(tmp_path / "r.jsonl.gz", [rec])
    (back,) = read_records(tmp_path / "r.jsonl.gz")
    for a, b in zip(back.group.rollouts, scored.rollouts):
        assert a == b
    rows = rows_of([scored], min_group=1)
    th = Threads.of(rows)
    import numpy as np
    vals = [np.arange(len(r.response_ids), dtype=np.float32) for r in rows]
    for a, b in zip(th.join(th.cut(vals)), vals): assert (a == b).all()
    valid = [r for r in group.rollouts if r.fault is None]
    seqs = [[*map(int, s.prompt_ids), *map(int, s.response_ids)] for s in th.rows]
    assert seqs == [ids(t.segments) for r in valid for t in r.threads]
    # fork positions share node ids
    for i, row in enumerate(rows):
        if row.parent >= 0:
            p = rows[row.parent]
            assert (row.node_ids[: row.fork_position] == p.node_ids[: row.fork_position]).all()
            both = set(map(int, row.node_ids)) & set(map(int, p.node_ids))
            assert len(both) == row.fork_position
