#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A profile: valid JSON with every rank and every instruction of the program of the steps asked for, spans that nest and
# add up, and the same training as without.
. "$(dirname "$0")/lib.sh"

make_tiny
cat >check.py <<'END'
import collections, json, re, sys
file, plan, ranks, accum, ops, overlap, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]), sys.argv[7].split(",")
steps = [int(s) for s in steps]
events = json.load(open(file))["traceEvents"]
lists = dict(re.findall(r"^(\w+):\n((?:  .*\n)+)", open(plan).read(), re.M))
lists = {k: [i.strip() for i in v.replace("\n", " ").split("|") if i.strip()] for k, v in lists.items()}
order = ["only"] if accum == 1 else ["first"] + ["middle"] * (accum - 2) + ["last"]
want = collections.Counter(i for name in order + ["after", "updates"] for i in lists[name])
spans = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in spans} == set(range(ranks)), "ranks"
names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert names == {"steps", "compute", "gather", "reduce", "update"}, names
eps = 0.01 # microseconds: three digits are printed
for rank in range(ranks):
    tops = [e for e in spans if e["pid"] == rank and e["cat"] == "step"]
    assert [e["args"]["step"] for e in tops] == steps, (rank, tops)
    for top in tops:
        mine = [e for e in spans if e["pid"] == rank and e["cat"] != "step" and e["args"]["step"] == top["args"]["step"]]
        parts = [e for e in mine if e["cat"] == "instruction"]
        got = collections.Counter(e["name"] for e in parts)
        extra = collections.Counter({"counts": 1, "tokens": accum, "results": 1})
        extra["join"] += file[0] == "r" # a step that is kept
        assert got == want + extra, (got - want - extra, want + extra - got)
        places = collections.Counter(e["args"]["place"] for e in parts if "place" in e["args"])
        assert places["after:0 norm"] == 1 and len(places) >= len(want), places
        for e in mine:
            assert e["dur"] >= 0 and e["ts"] >= top["ts"] - eps, e
            if e["tid"] == 1: # updates and publications run on beside the next step
                assert e["ts"] + e["dur"] <= top["ts"] + top["dur"] + eps, (e, top)
        for queue in {e["tid"] for e in parts}:
            row = sorted((e["ts"], e["dur"], e["name"]) for e in parts if e["tid"] == queue)
            for a, b in zip(row, row[1:]):
                assert a[0] + a[1] <= b[0] + eps, (a, b)
        compute = sum(e["dur"] for e in parts if e["tid"] == 1)
        inside = sum(e["dur"] for e in mine if e["tid"] == 1 and e["cat"] in ("wait", "collective"))
        a = top["args"]
        assert abs(1e3 * a["exposed_ms"] - inside) < 2, (a, inside)
        assert abs(1e3 * a["busy_ms"] - compute + inside) < 2, (a, compute, inside)
        assert abs(a["busy_ms"] + a["exposed_ms"] + a["idle_ms"] - top["dur"] / 1e3) < 1e-3, (a, top)
        kinds = {e["cat"] for e in mine}
        assert ("operation" in kinds) == bool(ops) and "wait" in kinds, kinds
        assert "collective" in kinds
        tids = collections.Counter(e["tid"] for e in parts if e["name"].startswith("update "))
        assert set(tids) == ({4} if overlap else {1}), tids
        assert ({e["tid"] for e in mine if e["cat"] == "collective"} == {1}) == (not overlap), "queues"
        for e in mine:
            if e["cat"] == "operation" and e["name"] == "matmul":
                m, n, k = map(int, e["args"]["shape"].split()[0].split("x"))
                if e["dur"] > 0.5:
                    assert abs(e["args"]["TFLOP/s"] - 2e-6 * m * n * k / e["dur"]) < 0.1, e
END
verify() {
    python3 check.py "$@" >verdict 2>&1 || { complain "profile $*:"; show verdict; }
}

for stage in 0 1 2 3; do
    set -- tiny.yaml --ranks 2 --set shard.stage=$stage --set batch.accum=3
    run 0 plan tiny.yaml --ranks 2 --set shard.stage=$stage --program
    cp out program-$stage
    run 0 train "$@" --set run.dir=p$stage --profile --set profile.detail=ops
    has err "profile of steps 4 to 5"
    has err "exposed communication"
    has err "backward block"
    has err "matmul 32x"
    verify p$stage/profile.json program-$stage 2 3 1 1 4,5
    run 0 train "$@" --set run.dir=q$stage --set shard.overlap=false --profile=here.json --set profile.skip=0 \
        --set profile.steps=1
    verify here.json program-$stage 2 3 0 0 1
    rm here.json
    run 0 train "$@" --set run.dir=r$stage --set run.graph=on --profile
    verify r$stage/profile.json program-$stage 2 3 0 1 4,5
    for name in p q r; do
        grep '"loss"' $name$stage/metrics.jsonl |
            sed -E 's/"(step_seconds|run_seconds|tokens_per_second|tflops_per_device|exposed_seconds|exposed_share|sent_all_gather|sent_total)": *[0-9.e-]+//g' >$name
    done
    cmp -s p q && cmp -s p r || complain "stage $stage: another training"
done

# One rank; a run too short; a place that cannot be written.
run 0 train tiny.yaml --ranks 2 --set run.dir=both --set shard.stage=3 --set log.every=1 --profile
python3 - <<'PY' >verdict 2>&1 || { complain "exposed communication, by the profile and by the step:"; show verdict; }
import json
rows = [json.loads(line) for line in open("both/metrics.jsonl")]
profile = {r["step"]: r for r in rows if "busy_seconds" in r}
steps = {r["step"]: r for r in rows if "loss" in r}
assert sorted(profile) == [4, 5], rows
for r in steps.values():
    assert 0 < r["exposed_seconds"] <= r["step_seconds"], r
    assert abs(r["exposed_share"] - r["exposed_seconds"] / r["step_seconds"]) < 1e-9, r
for s, p in profile.items():
    assert 0 <= p["exposed_seconds"] - steps[s]["exposed_seconds"] < 0.2 * p["exposed_seconds"] + 1e-3, (p, steps[s])
PY
run 0 train tiny.yaml --set run.dir=one --set batch.global=2 --profile
[ -s one/profile.json ] || complain "no profile of one rank"
run 0 train tiny.yaml --set run.dir=short --set batch.global=2 --set train.steps=2 --profile
has err "nothing was profiled"
run 1 train tiny.yaml --set run.dir=none --set batch.global=2 --profile=no/such/folder.json
has err "no/such/folder.json"
run 2 train tiny.yaml --set profile.steps=0
has err "profile.steps"
finish
