/** The measurements of the serving benchmarks: closed loops of calls, and the graph alone. */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './demo-model.ts';

const WARM_MS = 1_500;
const MEASURE_MS = 4_000;

export interface LoopResult {
  readonly perSecond: number;
  /**
   * Calls per second of this process's CPU time, which other work on the machine hardly changes.
   */
  readonly perCpuSecond: number;
  /** Milliseconds, sorted. */
  readonly latencies: Float64Array;
}

/** Keeps `callers` calls in flight, first to warm up, then to measure. */
export async function runClosedLoop(
  call: (i: number) => Promise<unknown>,
  callers: number,
): Promise<LoopResult> {
  const run = async (forMs: number): Promise<LoopResult> => {
    const latencies: number[] = [];
    const cpu = process.cpuUsage();
    const startMs = performance.now();
    let next = 0;
    const callAgain = async (): Promise<void> => {
      for (let nowMs = performance.now(); nowMs - startMs < forMs; ) {
        await call(next++);
        const doneMs = performance.now();
        latencies.push(doneMs - nowMs);
        nowMs = doneMs;
      }
    };
    await Promise.all(Array.from({ length: callers }, callAgain));
    const perSecond = (1_000 * latencies.length) / (performance.now() - startMs);
    const { user, system } = process.cpuUsage(cpu);
    const perCpuSecond = (1e6 * latencies.length) / (user + system);
    return { perSecond, perCpuSecond, latencies: Float64Array.from(latencies).sort() };
  };
  await run(WARM_MS);
  return run(MEASURE_MS);
}

/** Runs the graph alone on zeros; a call is one run of `rowCount` rows. */
export async function runGraphAlone(folder: string, rowCount: number): Promise<LoopResult> {
  const model = await OnnxModel.load(
    await openRepository(join(folder, 'repo')).readVersionFile(BUNDLE, '1', 'model.onnx'),
  );
  const feeds: Record<string, OnnxTensor> = {};
  for (const { name, shape } of model.inputs) {
    const dims = shape.map((dim) => (typeof dim === 'number' ? dim : rowCount));
    const data = new Float32Array(dims.reduce((product, dim) => product * dim, 1));
    feeds[name] = { dtype: 'float32', data, dims };
  }
  const measured = await runClosedLoop(() => model.run(feeds), 1);
  await model.release();
  return measured;
}

/** Runs the graph alone in another process, on one core. */
export function runGraphAloneOn(core: number, folder: string, rowCount: number): LoopResult {
  const pin = availableParallelism() > 1 ? ['taskset', '-c', String(core)] : [];
  const command = [process.execPath, import.meta.filename, folder, String(rowCount)];
  const [program = '', ...args] = [...pin, ...command];
  const { stdout, stderr, status } = spawnSync(program, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`the graph alone failed: ${stderr}`);
  const { perSecond, perCpuSecond, p50Ms } = JSON.parse(stdout);
  return { perSecond, perCpuSecond, latencies: Float64Array.of(p50Ms) };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [folder = '', rowCount] = process.argv.slice(2);
  const { perSecond, perCpuSecond, latencies } = await runGraphAlone(folder, Number(rowCount));
  const p50Ms = latencies[latencies.length >> 1];
  process.stdout.write(JSON.stringify({ perSecond, perCpuSecond, p50Ms }));
}
