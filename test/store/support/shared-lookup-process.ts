/** A worker thread that repeats the same lookups in a shared version and reports the results. */
import { parentPort, workerData } from 'node:worker_threads';
import { attachSharedVersion, type SharedVersion } from '../../../lib/store/shared-version.ts';
import { type Answer, lookUpChain } from './arbitrary-chain.ts';

interface WorkerJob {
  readonly shared: SharedVersion;
  readonly thread: number;
  readonly keys: readonly bigint[];
  readonly asF32: boolean;
  readonly rounds: number;
}

const { shared, thread, keys, asF32, rounds } = workerData as WorkerJob;
const version = attachSharedVersion(shared, thread);
const table = version.table('t')!;
const answers = new Set<string>();
for (let round = 0; round < rounds; round++) {
  const answer: Answer = await lookUpChain(table, keys, asF32, round % 3);
  answers.add(JSON.stringify(answer));
  if (round === 0) parentPort?.postMessage('looking up');
}
version.detach();
let refused = '';
await lookUpChain(table, keys, asF32).catch((error: { code: string }) => {
  refused = error.code;
});
parentPort?.postMessage({ answers: [...answers], refused });
