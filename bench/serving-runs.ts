/** What the serving benchmarks measure by: calls kept under way, and the graph alone. */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { OnnxModel, type OnnxTensor } from '../lib/platform/onnx.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { BUNDLE } from './serving-model.ts';

const WARM_MS = 1_500;
const MEASURE_MS = 4_000;

export interface Measured {
  readonly perSecond: number;
  /** Calls for each second of CPU time that this process took: what others do on the machine does not change it much. */
  readonly perCpuSecond: number;
  /** Milliseconds, sorted. */
  readonly latencies: Float64Array;
}

/** Keeps calls under way, first to warm up, then to measure. */
export async function closedLoop(
  call: (i: number) => Promise<unknown>,
  lanes: number,
): Promise<Measured> {
  const run = async (forMs: number): Promise<Measured> => {
    const latencies: number[] = [];
    const cpu = process.cpuUsage();
    const startMs = performance.now();
    let next = 0;
    const lane = async (): Promise<void> => {
      for (let nowMs = performance.now(); nowMs - startMs < forMs; ) {
        await call(next++);
        const doneMs = performance.now();
        latencies.push(doneMs - nowMs);
        nowMs = doneMs;
      }
    };
    await Promise.all(Array.from({ length: lanes }, lane));
    const perSecond = (1_000 * latencies.length) / (performance.now() - startMs);
    const { user, system } = process.cpuUsage(cpu);
    const perCpuSecond = (1e6 * latencies.length) / (user + system);
    return { perSecond, perCpuSecond, latencies: Float64Array.from(latencies).sort() };
  };
  await run(WARM_MS);
  return run(MEASURE_MS);
}

/** The graph alone, on zeros; a call is one run of so many rows. */
export async function bareRun(folder: string, rowCount: number): Promise<Measured> {
  const model = await OnnxModel.load(
    await openRepository(join(folder, 'repo')).readVersionFile(BUNDLE, '1', 'model.onnx'),
  );
  const feeds: Record<string, OnnxTensor> = {};
  for (const { name, shape } of model.inputs) {
    const dims = shape.map((dim) => (typeof dim === 'number' ? dim : rowCount));
    const data = new Float32Array(dims.reduce((product, dim) => product * dim, 1));
    feeds[name] = { dtype: 'float32', data, dims };
  }
  const measured = await closedLoop(() => model.run(feeds), 1);
  await model.release();
  return measured;
}

/** The same in a process of its own on one core. */
export function bareRunOn(core: number, folder: string, rowCount: number): Measured {
  const pin = availableParallelism() > 1 ? ['taskset', '-c', String(core)] : [];
  const own = [process.execPath, import.meta.filename, folder, String(rowCount)];
  const [program = '', ...args] = [...pin, ...own];
  const { stdout, stderr, status } = spawnSync(program, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`the bare run ended: ${stderr}`);
  const { perSecond, perCpuSecond, p50Ms } = JSON.parse(stdout);
  return { perSecond, perCpuSecond, latencies: Float64Array.of(p50Ms) };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [folder = '', rowCount] = process.argv.slice(2);
  const { perSecond, perCpuSecond, latencies } = await bareRun(folder, Number(rowCount));
  const p50Ms = latencies[latencies.length >> 1];
  process.stdout.write(JSON.stringify({ perSecond, perCpuSecond, p50Ms }));
}
