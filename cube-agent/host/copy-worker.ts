/**
 * The thread that brings layers to this host: reads, hashes, writes and flushes them behind everything else that runs here, so
 * that a fetch takes no time from the lookups of the host's servers, and an agent answers while its disk does not.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { RateLimit } from '../../lib/platform/rate-limit.ts';
import { runInBackground } from '../../lib/platform/thread-priority.ts';
import type { Backend } from '../../lib/repository/backend.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openBackend } from '../../lib/repository/open-backend.ts';
import { copyVerified } from '../../lib/repository/verified-copy.ts';
import type { CopyMessage, CopyReport, CopyRequest } from './copy-protocol.ts';

const port = parentPort;
if (port === null) throw new Error('copy-worker.ts runs as a worker thread');
runInBackground();

const location = workerData as string;
const underWay = new Map<number, AbortController>();
let backend: Backend | undefined;
let shared: RateLimit | undefined;

function rateOf(bytesPerSecond: number | undefined): { rate?: RateLimit } {
  if (bytesPerSecond === undefined) return {};
  if (shared?.bytesPerSecond !== bytesPerSecond)
    shared = new RateLimit(bytesPerSecond, systemClock);
  return { rate: shared };
}

async function copy({
  id,
  bundle,
  table,
  layer,
  target,
  bytesPerSecond,
}: CopyRequest): Promise<void> {
  const report = (answer: CopyReport): void => port?.postMessage(answer);
  const stopping = new AbortController();
  underWay.set(id, stopping);
  try {
    backend ??= openBackend(location, false);
    const source = { backend, path: layerPath(bundle, table, layer.contentId) };
    await copyVerified(source, layer, target, {
      ...{ ...rateOf(bytesPerSecond), clock: systemClock },
      signal: stopping.signal,
      onBytes: (bytes) => report({ id, type: 'bytes', bytes }),
    });
    report({ id, type: 'done' });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    report({ id, type: 'failed', code, message });
  } finally {
    underWay.delete(id);
  }
}

port.on('message', (message: CopyMessage) => {
  if (message.type === 'abort') underWay.get(message.id)?.abort();
  else void copy(message);
});
