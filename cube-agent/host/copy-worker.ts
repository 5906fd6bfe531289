/**
 * A worker thread that copies layers to this host, and frees the space of removed ones. It reads,
 * hashes, writes and flushes in idle time or at low priority, so that a fetch does not slow down
 * lookups and the agent answers while its disk is slow.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { ByteRateLimiter } from '../../lib/platform/byte-rate-limiter.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { closeDescriptor } from '../../lib/platform/files.ts';
import { lowerThreadPriority, runWhenIdle } from '../../lib/platform/machine.ts';
import type { Backend } from '../../lib/repository/backend.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openBackend } from '../../lib/repository/open-backend.ts';
import { copyVerified } from '../../lib/repository/verified-copy.ts';
import type { CopyMessage, CopyReport, CopyRequest, CopyWorkerData } from './copy-protocol.ts';

const port = parentPort;
if (port === null) throw new Error('copy-worker.ts runs as a worker thread');
const { location, whenIdle } = workerData as CopyWorkerData;
if (whenIdle) void runWhenIdle();
else lowerThreadPriority();

const inProgress = new Map<number, AbortController>();
let backend: Backend | undefined;
let sharedRate: ByteRateLimiter | undefined;

function getSharedRate(bytesPerSecond: number | undefined): { rate?: ByteRateLimiter } {
  if (bytesPerSecond === undefined) return {};
  if (sharedRate?.bytesPerSecond !== bytesPerSecond)
    sharedRate = new ByteRateLimiter(bytesPerSecond, systemClock);
  return { rate: sharedRate };
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
  inProgress.set(id, stopping);
  try {
    backend ??= openBackend(location, false);
    const source = { backend, path: layerPath(bundle, table, layer.contentId) };
    await copyVerified(source, layer, target, {
      ...getSharedRate(bytesPerSecond),
      clock: systemClock,
      signal: stopping.signal,
      onBytes: (bytes) => report({ id, type: 'bytes', bytes }),
    });
    report({ id, type: 'done' });
  } catch (error) {
    const { code, message } = CubeError.from(error);
    report({ id, type: 'failed', code, message });
  } finally {
    inProgress.delete(id);
  }
}

port.on('message', (message: CopyMessage) => {
  if (message.type === 'close') closeDescriptor(message.descriptor);
  else if (message.type === 'abort') inProgress.get(message.id)?.abort();
  else void copy(message);
});
