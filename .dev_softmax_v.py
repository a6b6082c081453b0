"""softmax(scale * s) @ v in one kernel beside torch, and the specs of batches and of waiting sides proven on the GPU.

python .dev_softmax_v.py [seconds in all, 95]: times first (<= 55 s), then proofs for what is left (<= 40 s).
Writes $OUT/softmax_v.jsonl, a line for each result as it comes.
"""
import json, multiprocessing as mp, os, sys, time
sys.path.insert(0, ".")
START, TOTAL = time.time(), float(sys.argv[1]) if len(sys.argv) > 1 else 95.0
OUT = os.path.join(os.environ.get("OUT", "."), "softmax_v.jsonl")
TIMES_S, SCALE, B, S = 55.0, 0.125, 128, 1024
ON = dict(hold="shared", stages=2, softmax="online")
FAST = dict(ON, arithmetic="approximate")
KNOBS = {
    64: {
        "128x64x16 8x8 exact": dict(ON, tile_m=128, tile_n=64, tile_k=16, thread_m=8, thread_n=8),
        "128x64x16 8x8": dict(FAST, tile_m=128, tile_n=64, tile_k=16, thread_m=8, thread_n=8),
        "128x64x32 8x8": dict(FAST, tile_m=128, tile_n=64, tile_k=32, thread_m=8, thread_n=8),
        "128x64x16 8x4": dict(FAST, tile_m=128, tile_n=64, tile_k=16, thread_m=8, thread_n=4),
        "64x64x16 8x8": dict(FAST, tile_m=64, tile_n=64, tile_k=16, thread_m=8, thread_n=8),
        "256x64x16 8x8": dict(FAST, tile_m=256, tile_n=64, tile_k=16, thread_m=8, thread_n=8),
        "128x64x16 8x8 two_pass": dict(FAST, softmax="two_pass", tile_m=128, tile_n=64, tile_k=16, thread_m=8, thread_n=8),
    },
    128: {
        "128x128x16 8x8 exact": dict(ON, tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8),
        "128x128x16 8x8": dict(FAST, tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8),
        "128x128x32 8x8": dict(FAST, tile_m=128, tile_n=128, tile_k=32, thread_m=8, thread_n=8),
        "64x128x16 8x8": dict(FAST, tile_m=64, tile_n=128, tile_k=16, thread_m=8, thread_n=8),
        "64x128x32 8x8": dict(FAST, tile_m=64, tile_n=128, tile_k=32, thread_m=8, thread_n=8),
        "128x128x16 8x8 two_pass": dict(FAST, softmax="two_pass", tile_m=128, tile_n=128, tile_k=16, thread_m=8, thread_n=8),
    },
}


def keep(**found):
    with open(OUT, "a") as out:
        out.write(json.dumps(found) + "\n")


def schedule_of(knobs, vector):
    from normgen.schedule.knobs import knob_value
    from normgen.schedule.schedule import Schedule
    return Schedule().varied(**{k: knob_value(k, str(v)) for k, v in {**knobs, "vector": vector}.items()})


def problem_of(dtype, d):
    from normgen.program.source import problem_for
    from normgen.spec.reader import load
    return problem_for(load("softmax_v"), shape=(8, 16, S, d), inner=S, batches=B, dtype=dtype)


def compiled(job):
    """Into the cache, in a process of its own."""
    from normgen.cuda.compiler import compile_module
    from normgen.pipeline import emit
    dtype, d, name, knobs, arch = job
    try:
        cubin = compile_module(emit(problem_of(dtype, d), schedule_of(knobs, 4 if dtype == "f32" else 8)), arch)
        (r,) = cubin.resources.values()
        return (dtype, d, name), f"{r.registers} registers, {r.spill_bytes} spilled"
    except Exception as error:
        return (dtype, d, name), f"REFUSED {error!r}"[:300]


def median_ms(torch, functions, rounds=7, inner=3):
    """Interleaved; each figure is a median of rounds of a few calls."""
    times = {name: [] for name in functions}
    for name, f in functions.items():
        for _ in range(3):
            f()
    for _ in range(rounds):
        for name, f in functions.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(inner):
                f()
            b.record()
            b.synchronize()
            times[name].append(a.elapsed_time(b) / inner)
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def times(said):
    import torch
    import normgen
    from normgen.cuda.driver import device_facts
    from normgen.schedule.legality import refusal
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    facts = device_facts(0)
    eager = lambda s, v: torch.softmax(s * SCALE, -1) @ v
    compile_ = torch.compile(eager, dynamic=False)
    for dtype, d in (("f32", 64), ("f32", 128), ("bf16", 64), ("bf16", 128)):
        if time.time() - START > TIMES_S:
            print("time is over before", dtype, d, flush=True)
            return
        torch.manual_seed(0)
        kind = torch.float32 if dtype == "f32" else torch.bfloat16
        s = (8 * torch.randn(8, 16, S, S, device="cuda")).to(kind)
        v = torch.randn(8, 16, S, d, device="cuda").to(kind)
        y = torch.empty(8, 16, S, d, device="cuda", dtype=kind)
        functions = {"eager": lambda s=s, v=v: eager(s, v)}
        try:
            compile_(s, v)
            functions["compile"] = lambda s=s, v=v: compile_(s, v)
        except Exception as error:
            print("torch.compile:", repr(error)[:200], flush=True)
        vector = 4 if dtype == "f32" else 8
        want = [torch.softmax(s[i].double() * SCALE, -1) @ v[i].double() for i in (0, 3, 7)]
        wrong = {}
        problem = problem_of(dtype, d)
        for name, knobs in KNOBS[d].items():
            schedule = schedule_of(knobs, vector)
            if why := refusal(problem, schedule, facts):
                print(dtype, d, name, "refused:", why, flush=True)
                continue
            try:
                kernel = normgen.kernel("softmax_v", shape=(8, 16, S, d), inner=S, batches=B, dtype=dtype, schedule=schedule)
                y.fill_(float("nan"))
                kernel(s, v, scale=SCALE, out=y)
                torch.cuda.synchronize()
                error = max(((y[i].double() - w).abs().max() / w.abs().max()).item() for i, w in zip((0, 3, 7), want))
                wrong[name] = error
                if not error <= (3e-6 if dtype == "f32" else 4e-3):
                    print(dtype, d, name, "WRONG", error, flush=True)
                functions[name] = lambda kernel=kernel, s=s, v=v, y=y: kernel(s, v, scale=SCALE, out=y)
            except Exception as error:
                print(dtype, d, name, repr(error)[:300], flush=True)
        found = median_ms(torch, functions)
        peer = min(found[n] for n in ("eager", "compile") if n in found)
        moved = (s.numel() + v.numel() + y.numel()) * s.element_size()
        tera = 2 * s.numel() * d
        for name, ms in found.items():
            line = dict(dtype=dtype, d=d, name=name, ms=round(ms, 4), against_best_torch=round(peer / ms, 3),
                        gb_per_s=round(moved / ms / 1e6), tflops=round(tera / ms / 1e9, 1), error=wrong.get(name),
                        compiled=said.get((dtype, d, name)), device=facts.name)
            keep(**line)
            print(f"{dtype:5} {d:4} {name:26} {ms:8.4f} ms  {peer / ms:6.3f} x  {moved / ms / 1e6:6.0f} GB/s  "
                  f"{tera / ms / 1e9:5.1f} TFLOP/s  error {wrong.get(name, 0):.1e}  {said.get((dtype, d, name), '')}", flush=True)
        ours = {n: t for n, t in found.items() if n in KNOBS[d]}
        if ours:
            best = min(ours, key=ours.get)
            print(f"== {dtype} {d}: best {best} {ours[best]:.4f} ms, {peer / ours[best]:.3f} x the best of torch", flush=True)
        del s, v, y, want, functions
        torch.cuda.empty_cache()


def proven(job):
    from normgen.cuda.driver import device_facts
    from normgen.measure.check import check_on_gpu
    from normgen.pipeline import emit
    from normgen.program.source import problem_for
    from normgen.schedule.default import default_schedule
    from normgen.spec.reader import load
    op, gradient, shape, inner, dtype, knobs, any_cols = job
    begun = time.time()
    try:
        facts = device_facts(0)
        asked = dict(direction="backward", gradients=[gradient]) if gradient else {}
        problem = problem_for(load(op), shape=shape, inner=inner, dtype=dtype, any_cols=any_cols, **asked)
        schedule = schedule_of(knobs, knobs.get("vector", 1)) if knobs else default_schedule(problem, facts)
        found = check_on_gpu(problem, emit(problem, schedule), facts, index=0, seed=1)
        return dict(job=job, ok=found.ok, error=found.error, s=round(time.time() - begun, 1), said="" if found.ok else found.summary[:500])
    except Exception as error:
        return dict(job=job, ok=None, s=round(time.time() - begun, 1), said=repr(error)[:400])


def jobs():
    small = dict(hold="shared", stages=2, tile_m=32, tile_n=32, tile_k=16, thread_m=4, thread_n=2)
    found = []
    for dtype in ("f32", "bf16", "f16"):
        for shape, inner in (((3, 63, 64), 100), ((2, 65, 63), 33), ((5, 17, 128), 256)):
            for op in ("softmax_v", "masked_softmax_v", "causal_softmax_v"):
                found.append((op, "", shape, inner, dtype, None, False))
                found.append((op, "", shape, inner, dtype, dict(small, softmax="online"), False))
                found.append((op, "", shape, inner, dtype, small, True))
                if dtype == "f32":
                    found.append((op, "", shape, inner, dtype, dict(small, arithmetic="approximate", softmax="online"), False))
                    found.append((op, "", shape, inner, dtype, dict(small, hold="reload", stages=1), False))
            found += [("bmm", g, shape, inner, dtype, None, a) for g in ("", "x", "w") for a in (False, True)]
    found += [("bmm", g, (16, 1024, 64), 1024, d, None, False) for g in ("", "x", "w") for d in ("f32", "bf16")]
    found += [("softmax_v", "", (16, 1024, d), 1024, t, None, False) for d in (64, 128) for t in ("f32", "bf16")]
    return found


def proofs():
    todo, n, bad = jobs(), 0, 0
    with mp.get_context("spawn").Pool(12) as pool:
        it = pool.imap_unordered(proven, todo)
        while n < len(todo):
            try:
                r = it.next(timeout=max(0.1, START + TOTAL - time.time()))
            except (StopIteration, mp.TimeoutError):
                print("time is over")
                break
            keep(**r)
            n += 1
            if r["ok"] is not True:
                bad += 1
                print(r, flush=True)
        pool.terminate()
    print(f"{n} of {len(todo)} proofs made, {bad} not ok", flush=True)


if __name__ == "__main__":
    import subprocess
    cap = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
    arch = int((cap.stdout.split() or ["9.0"])[0].replace(".", ""))
    work = [(t, d, name, knobs, arch) for t in ("f32", "bf16") for d in KNOBS for name, knobs in KNOBS[d].items()]
    with mp.get_context("spawn").Pool(min(14, os.cpu_count() or 1)) as pool:
        said = dict(pool.map(compiled, work, chunksize=1))
    print(f"compiled after {time.time() - START:.0f} s", flush=True)
    for key, what in said.items():
        if "REFUSED" in what or not what.endswith(" 0 spilled"):
            print(key, what, flush=True)
    try:
        times(said)
    except Exception as error:
        print("times:", repr(error)[:400], flush=True)
    print(f"times after {time.time() - START:.0f} s", flush=True)
    proofs()
