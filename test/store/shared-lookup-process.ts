/** A worker thread that looks the same keys up again and again in a shared version, and says what it was answered. */
import { parentPort, workerData } from 'node:worker_threads';
import { attachShared, type SharedVersion } from '../../lib/store/shared-version.ts';
import { type Answer, ask } from './chains.ts';

interface WorkerJob {
  readonly shared: SharedVersion;
  readonly thread: number;
  readonly keys: readonly bigint[];
  readonly asF32: boolean;
  readonly rounds: number;
}

const { shared, thread, keys, asF32, rounds } = workerData as WorkerJob;
const version = attachShared(shared, thread);
const table = version.table('t')!;
const answers = new Set<string>();
for (let round = 0; round < rounds; round++) {
  const answer: Answer = await ask(table, keys, asF32, round % 3);
  answers.add(JSON.stringify(answer));
  if (round === 0) parentPort?.postMessage('looking up');
}
version.detach();
let refused = '';
await ask(table, keys, asF32).catch((error: { code: string }) => {
  refused = error.code;
});
parentPort?.postMessage({ answers: [...answers], refused });
